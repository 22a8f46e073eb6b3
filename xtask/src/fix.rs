//! `cargo xtask fix`: what a program can fix. `test` never writes; this does.

use crate::{context::Context, generate, programs, tools};

pub(crate) fn run(context: &Context) -> anyhow::Result<()> {
    tools::component("rustfmt", "fmt")?;
    tools::component("clippy", "clippy")?;
    context
        .cargo(["clippy", "--workspace", "--all-targets", "--fix"])
        .args(["--allow-dirty", "--allow-staged"])
        .args(programs::FEATURES)
        .run()?;
    // After clippy, whose suggestions aren't formatted.
    context.cargo(["fmt", "--all"]).run()?;
    generate::run(context)
}
