//! What the servers hold in memory, and the processor time that they took, where they are processes of this machine and started by `up`.

use serde::Serialize;

/// A server's process.
#[derive(Debug, Serialize)]
pub(super) struct Process {
    pub(super) name: String,
    /// Resident set, in MiB.
    pub(super) mebibytes: f64,
    /// Processor time since its start.
    pub(super) cpu_seconds: f64,
}

/// Hundredths of a second, in which the kernel counts processor time for programs.
const TICKS_PER_SECOND: f64 = 100.0;

fn cpu_seconds(process: &std::path::Path) -> f64 {
    let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
    // Behind the name, which may have blanks: the 12th and 13th field.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum::<f64>()
        / TICKS_PER_SECOND
}

/// What this process holds, in MiB.
pub(super) fn own() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    resident(&status).unwrap_or_default()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim())
}

fn resident(status: &str) -> Option<f64> {
    let kibibytes: f64 = field(status, "VmRSS")?
        .split_whitespace()
        .next()?
        .parse()
        .ok()?;
    Some(kibibytes / 1024.0)
}

/// The servers that run beside this process, as children of the same parent.
pub(super) fn now(when: &str) -> (String, Vec<Process>) {
    let parent = rustix::process::getppid().map(rustix::process::Pid::as_raw_nonzero);
    let mut processes = Vec::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        // Also /proc/self and the like lead to this process.
        let pid: Option<u32> = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if pid.is_none_or(|pid| pid == std::process::id()) {
            continue;
        }
        let Ok(status) = std::fs::read_to_string(entry.path().join("status")) else {
            continue;
        };
        let (Some(name), Some(its_parent), Some(mebibytes)) = (
            field(&status, "Name"),
            field(&status, "PPid"),
            resident(&status),
        ) else {
            continue;
        };
        if !name.starts_with("percolator")
            || its_parent.parse().ok() != parent.map(std::num::NonZero::get)
        {
            continue;
        }
        // The kernel cuts names short; the command line has the server's own.
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut arguments = arguments
            .split(|byte| *byte == 0)
            .map(|argument| String::from_utf8_lossy(argument).into_owned());
        let server = arguments
            .find(|argument| argument == "--server")
            .and_then(|_| arguments.next());
        processes.push(Process {
            name: server.unwrap_or_else(|| name.to_owned()),
            mebibytes,
            cpu_seconds: cpu_seconds(&entry.path()),
        });
    }
    processes.sort_by(|a, b| a.name.cmp(&b.name));
    (when.to_owned(), processes)
}
