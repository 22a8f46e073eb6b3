//! `cargo xtask generate`: files that are made from the code, and committed. Tests prove them fresh.

use crate::{
    context::Context,
    parts::{Report, unit},
};

/// Test programs that compare such files, and write them with `REWRITE=1`, by package and name.
const PROGRAMS: [(&str, &str); 8] = [
    ("percolator-protocol", "scripts"),
    ("percolator-wire", "go"),
    ("percolator-api", "definition"),
    ("percolator-api", "reference"),
    ("percolator-operator", "percolator-operator"),
    ("percolator-telemetry", "document"),
    ("xtask", "chart"),
    ("xtask", "monitoring"),
];

pub(crate) fn run(context: &Context) -> anyhow::Result<()> {
    let mut programs = Vec::new();
    for (package, name) in PROGRAMS {
        let mut built = context.built()?.tests.iter();
        let program = built.find(|program| program.package == package && program.name == name);
        let missing = || anyhow::anyhow!("{package} has no test program {name}");
        programs.push(program.ok_or_else(missing)?);
    }
    let how = unit::RunMode {
        // Others read what one writes.
        arguments: &["--test-threads=1"],
        variables: vec![("REWRITE", "1".to_owned())],
        ..unit::RunMode::default()
    };
    unit::run_each(&programs, &how, &mut Report::default(), |program| {
        program.cargo_line()
    })
}
