//! The documentation builds without warnings.

use crate::{context::Context, parts::Verdict};

pub(crate) fn run(context: &Context) -> anyhow::Result<Verdict> {
    context
        .cargo(["doc", "--workspace", "--no-deps", "--keep-going"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    Ok(Verdict::Done)
}
