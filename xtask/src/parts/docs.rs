//! The documentation builds without warnings, and its links lead somewhere.

use crate::{context::Context, site};

pub(crate) fn run(context: &Context) -> anyhow::Result<String> {
    let links = site::check_links(context)?;
    context
        .cargo(["doc", "--workspace", "--no-deps", "--keep-going"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    Ok(format!("{}, {links}", context.crates()?))
}
