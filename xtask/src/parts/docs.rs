//! The documentation builds without warnings.

use crate::context::Context;

pub(crate) fn run(context: &Context) -> anyhow::Result<String> {
    context
        .cargo(["doc", "--workspace", "--no-deps", "--keep-going"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    context.crates()
}
