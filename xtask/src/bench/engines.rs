//! `cargo xtask bench engines`: what each engine does with the same work behind the same log, on a cluster of processes.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::Context as _;
use serde_json::Value;

use super::{
    Args,
    cluster::Cluster,
    turns::{self, Turns},
};
use crate::cmd::Cmd;

/// The engines that keep data. The first is what the others are compared with.
const ENGINES: [&str; 2] = ["redb", "sled"];
const PORT: u16 = 17_600;
const MIB: f64 = (1 << 20) as f64;

pub(super) fn run(programs: &Path, args: &Args) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let rows = folder.path().join("rows.csv");
    write_rows(&rows, args.rows)?;
    let mut turns = Turns::of(&ENGINES);
    for round in 1..=args.turns {
        for (side, engine) in ENGINES.iter().enumerate() {
            println!("round {round}: {engine}");
            let work = Work {
                percolator: programs.join("percolator"),
                data: folder.path().join(format!("{engine}-{round}")),
                rows: &rows,
                count: args.rows,
                duration: args.duration.as_deref().unwrap_or("8s"),
            };
            work.measure(engine, &mut |name, value| turns.add(side, name, value))?;
            fs::remove_dir_all(&work.data)?;
        }
    }
    turns.finish(args)
}

/// So many rows with one column of 100 bytes, in no order.
fn write_rows(file: &Path, count: u32) -> anyhow::Result<()> {
    let mut text = String::from("id,text\n");
    for number in 0..count {
        let id = number.wrapping_mul(0x9e37_79b9);
        writeln!(
            text,
            "{id:08x},{}",
            format!("{id:08x}-").repeat(12).get(..100).unwrap_or("")
        )?;
    }
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

struct Work<'a> {
    percolator: PathBuf,
    data: PathBuf,
    rows: &'a Path,
    count: u32,
    duration: &'a str,
}

impl Work<'_> {
    fn measure(&self, engine: &str, add: &mut dyn FnMut(&str, f64)) -> anyhow::Result<()> {
        fs::create_dir_all(&self.data)?;
        let manifest = self.data.with_extension("yaml");
        fs::write(
            &manifest,
            format!(
                "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata:\n  name: engines\nspec:\n  tablets:\n    \
             storage:\n      engine: {engine}\n      cacheSize: 64Mi\n"
            ),
        )?;
        let data = self.data.to_string_lossy().into_owned();
        let manifest = manifest.to_string_lossy().into_owned();
        let arguments = ["--raw", "-f", &manifest, "--data-dir", &data];
        let cluster = Cluster::start(&self.percolator, PORT, &arguments)?;
        for what in ["overhead", "reads"] {
            let said = self.command().args(["bench", what, "-o", "json", "-q"]);
            let said = said.args(["--duration", self.duration]).silent_output()?;
            for (name, value) in turns::figures(&said)? {
                add(&name, value);
            }
        }
        for clients in ["64", "256"] {
            let said = self
                .command()
                .args(["bank", "-o", "json", "-q", "--clients", clients]);
            let said = said.args(["--duration", self.duration]).silent_output()?;
            let said: Value = serde_json::from_str(&said)?;
            let rate = said["transfers_per_second"].as_f64().context("no rate")?;
            add(&format!("bank of {clients} clients /s"), rate);
        }
        let rows = self.rows.to_string_lossy();
        let import = [
            "import", "--table", "rows", "--key", "id", "--format", "csv", "-q", &rows,
        ];
        add("imported rows /s", self.rate(&import)?);
        add(
            "exported rows /s",
            self.rate(&["export", "--table", "rows"])?,
        );
        let memory = memory(&self.data)?;
        add("memory of the largest tablet server, MiB", memory.0);
        add("and its peak, MiB", memory.1);
        cluster.stop()?;
        add(
            "disk of tablet servers without logs, MiB",
            disk(&self.data)?,
        );
        let began = Instant::now();
        let again = Cluster::start(&self.percolator, PORT, &arguments)?;
        add("start with these data, s", began.elapsed().as_secs_f64());
        again.stop()
    }

    fn command(&self) -> Cmd {
        Cmd::new(&self.percolator).args(["-c", &format!("127.0.0.1:{PORT}")])
    }

    /// Rows a second of a command that goes over all of them.
    fn rate(&self, arguments: &[&str]) -> anyhow::Result<f64> {
        let began = Instant::now();
        self.command().args(arguments).silent_output()?;
        Ok(f64::from(self.count) / began.elapsed().as_secs_f64())
    }
}

/// Resident memory of the tablet server that has most: now, and at its peak.
fn memory(data: &Path) -> anyhow::Result<(f64, f64)> {
    let servers: Value = serde_json::from_slice(&fs::read(data.join("servers.json"))?)?;
    let servers = servers.as_array().context("no list of servers")?;
    let mut most = (0.0_f64, 0.0_f64);
    for server in servers.iter().filter(|server| server["role"] == "tablet") {
        let pid = server["pid"].as_u64().context("no process")?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let of = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<f64>().ok());
            kib.map(|kib| kib / 1024.0).context("no figure of memory")
        };
        most = (most.0.max(of("VmRSS:")?), most.1.max(of("VmHWM:")?));
    }
    Ok(most)
}

/// The size of all tablet servers' stores, in MiB.
fn disk(data: &Path) -> anyhow::Result<f64> {
    let mut bytes = 0;
    for entry in fs::read_dir(data)? {
        let store = entry?.path().join("store");
        if store.is_dir() {
            bytes += blocks(&store)?;
        }
    }
    Ok(bytes as f64 / MIB)
}

fn blocks(folder: &Path) -> anyhow::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() {
            blocks(&entry.path())?
        } else {
            metadata.blocks() * 512
        };
    }
    Ok(bytes)
}
