//! Files that tests write for programs, and that programs leave for people.

use std::io::Write as _;
use std::path::Path;

/// A file with this text, until the value goes: for what is too long for an argument.
pub fn written(text: &str) -> Result<tempfile::NamedTempFile, String> {
    let mut file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    let written = file.write_all(text.as_bytes());
    written.map_err(|error| error.to_string())?;
    Ok(file)
}

/// Prints the end of a program's log, each line behind the program's name.
#[allow(clippy::print_stdout, reason = "a failure's circumstances")]
pub(crate) fn print_end(program: &str, log: &Path) {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let last: Vec<&str> = log.lines().rev().take(30).collect();
    for line in last.into_iter().rev() {
        println!("{program}: {line}");
    }
}
