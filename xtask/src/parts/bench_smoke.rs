//! Every benchmark runs, for a moment: its numbers mean nothing here, but it has to work.

use crate::{cmd::Cmd, context::Context, parts::Report};

pub(crate) fn run(context: &Context, report: &mut Report) -> anyhow::Result<String> {
    let built = report.step("build", |_| context.built())?;
    let percolator = built.programs.join("percolator");
    for what in ["all", "gc", "large", "observers", "proxy", "tablets"] {
        Cmd::new(&percolator)
            .args(["up", "--processes", "--ephemeral", "--raw", "--"])
            .args(["percolator", "bench", what, "--smoke"])
            .run()?;
    }
    Ok("every benchmark".to_owned())
}
