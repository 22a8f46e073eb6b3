//! The documentation builds without warnings, its examples work, and its links lead somewhere.

use crate::{
    context::Context,
    links,
    parts::{Report, unit},
    programs,
};

pub(crate) fn run(context: &Context, report: &mut Report) -> anyhow::Result<String> {
    let links = links::check_all(context)?;
    report.step("pages", |_| {
        context
            .cargo(["doc", "--workspace", "--no-deps", "--keep-going"])
            .env("RUSTDOCFLAGS", "-D warnings")
            .run()
    })?;
    report.step("examples in the code", |report| {
        let examples = context.cargo(["test", "--workspace", "--doc"]);
        let examples = examples.args(programs::FEATURES);
        let (result, tally) = unit::read(examples, unit::LIMIT, unit::show);
        report.tally.add(tally);
        result
    })?;
    let tests = report.tests();
    Ok(format!("{}, {links}, {tests}", context.crates()?))
}
