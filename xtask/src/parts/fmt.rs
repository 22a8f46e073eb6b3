//! The code is formatted.

use crate::{context::Context, tools};

pub(crate) fn run(context: &Context) -> anyhow::Result<String> {
    tools::component("rustfmt", "fmt")?;
    context.cargo(["fmt", "--all", "--check"]).run()?;
    context.crates()
}
