//! Takeovers of real oracles and masters, one after the other, of each kind in turn, while clients record the answers.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Map, Value, json};

use crate::{
    bench::{
        failover::{Bench, PORT, RecordedFiles, Role, distribution},
        test_cluster::{ClusterKind, Fault, TestCluster},
    },
    context::Context,
    debian,
};

/// Runs so many, prints for how long nothing went on, and checks the answers that clients received.
pub(super) fn run(context: &Context, programs: &Path, takeovers: u32) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    let etcd = debian::ETCD.find(context);
    let faults = Fault::possible()?;
    let has_volumes = faults.contains(&Fault::KilledInWrite);
    let start = |kind: ClusterKind| {
        let folder = folder.path().join(format!("{kind:?}"));
        std::fs::create_dir(&folder)?;
        let cluster = TestCluster::start(kind, programs, &folder, PORT, etcd.as_deref())?;
        let mut bench = Bench::on(cluster);
        bench.record(RecordedFiles {
            ledger: folder.join("transfers.jsonl"),
            history: folder.join("history.jsonl"),
        });
        anyhow::Ok(bench)
    };
    let together = start(if has_volumes {
        ClusterKind::Volumes
    } else {
        ClusterKind::Processes
    })?;
    let kinds = Role::ALL.into_iter();
    let kinds = kinds.flat_map(|role| faults.iter().map(move |fault| (role, *fault)));
    let plan: Vec<(Role, Fault)> = kinds.cycle().take(takeovers.try_into()?).collect();
    let apart = if plan.iter().any(|(_, fault)| *fault == Fault::CutOff) {
        Some(start(ClusterKind::Hosts)?)
    } else {
        None
    };
    let mut gaps: BTreeMap<String, Vec<u128>> = BTreeMap::new();
    for (number, (role, fault)) in (1..).zip(plan) {
        let what = format!("{} {}", role.name(), fault.about());
        let bench = apart.as_ref().filter(|_| fault == Fault::CutOff);
        let gap = bench.unwrap_or(&together).gap(role, fault)?.as_millis();
        println!("{number} of {takeovers}: {what}: {gap} ms");
        gaps.entry(what).or_default().push(gap);
    }
    for bench in std::iter::once(together).chain(apart) {
        bench.check()?;
        bench.stop()?;
    }
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
