//! The code is formatted.

use crate::{context::Context, parts::Verdict, tools};

pub(crate) fn run(context: &Context) -> anyhow::Result<Verdict> {
    tools::component("rustfmt", "fmt")?;
    context.cargo(["fmt", "--all", "--check"]).run()?;
    Ok(Verdict::Done)
}
