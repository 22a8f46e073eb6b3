//! Every benchmark runs, for a moment: its numbers mean nothing here, but it has to work.

use crate::{
    cmd::Cmd,
    context::Context,
    parts::{Report, Verdict},
};

pub(crate) fn run(context: &Context, report: &mut Report) -> anyhow::Result<Verdict> {
    let built = report.step("build", |_| context.built())?;
    let percolator = built.programs.join("percolator");
    if !Cmd::new(&percolator).args(["bench", "--help"]).works() {
        return Ok(Verdict::LeftOut(
            "there is no `percolator bench`".to_owned(),
        ));
    }
    Cmd::new(percolator)
        .args(["up", "--processes", "--ephemeral", "--raw", "--"])
        .args(["percolator", "bench", "all", "--smoke"])
        .run()?;
    Ok(Verdict::Done)
}
