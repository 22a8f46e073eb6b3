//! No lint has anything to say.

use crate::{context::Context, programs, tools};

pub(crate) fn run(context: &Context) -> anyhow::Result<String> {
    tools::component("clippy", "clippy")?;
    context
        .cargo(["clippy", "--workspace", "--all-targets", "--keep-going"])
        .args(programs::FEATURES)
        .arg("--")
        .args(["-D", "warnings"])
        .run()?;
    context.crates()
}
