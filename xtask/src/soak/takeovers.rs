//! Takeovers of real oracles and masters, one after the other, of each kind in turn, while clients record the answers.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Map, Value, json};

use crate::{
    bench::failover::{Bench, Fault, PORT, Recorded, Role, distribution},
    cmd::Cmd,
};

/// Runs so many, prints for how long nothing went on, and checks what clients were told.
pub(super) fn run(programs: &Path, takeovers: u32) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    let user = Cmd::new("id").arg("-u").silent_output()?;
    let on_volumes = user.trim() == "0";
    let mut faults = Fault::OF_PROCESSES.to_vec();
    if on_volumes {
        faults.push(Fault::KilledInWrite);
    } else {
        println!("no disk hangs: only root can freeze a volume");
    }
    let mut bench = Bench::start(programs, folder.path(), PORT, on_volumes)?;
    bench.record(Recorded {
        ledger: folder.path().join("transfers.jsonl"),
        history: folder.path().join("history.jsonl"),
    });
    let kinds = Role::ALL.into_iter();
    let kinds = kinds.flat_map(|role| faults.iter().map(move |fault| (role, *fault)));
    let kinds: Vec<(Role, Fault)> = kinds.collect();
    let mut gaps: BTreeMap<String, Vec<u128>> = BTreeMap::new();
    for (number, (role, fault)) in (1..=takeovers).zip(kinds.into_iter().cycle()) {
        let what = format!("{} {}", role.name(), fault.about());
        let gap = bench.gap(role, fault)?.as_millis();
        println!("{number} of {takeovers}: {what}: {gap} ms");
        gaps.entry(what).or_default().push(gap);
    }
    bench.check()?;
    bench.stop()?;
    println!("for how long nothing went on, milliseconds");
    println!(
        "{:<40}{:>8}{:>8}{:>8}{:>8}",
        "", "count", "median", "p99", "longest"
    );
    let mut report = Map::new();
    for (what, mut gaps) in gaps {
        let [median, p99, longest] = distribution(&mut gaps);
        let count = gaps.len();
        println!("{what:<40}{count:>8}{median:>8}{p99:>8}{longest:>8}");
        let milliseconds =
            json!({"count": count, "median_ms": median, "p99_ms": p99, "longest_ms": longest});
        report.insert(what, milliseconds);
    }
    Ok(report.into())
}
