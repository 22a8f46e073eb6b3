//! What a shell completes: words of the command line, and the names of the cluster's tables.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use clap_complete::Shell;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use percolator_client::{Client, Options};

/// Set by the shell when it asks what could come next.
const ASKED: &str = "PERCOLATOR_COMPLETE";
/// Anyone who presses Tab waits for no longer.
const TIMEOUT: Duration = Duration::from_millis(800);

/// Answers a shell that asks what could come next, and ends the process then.
pub(crate) fn answer(command: impl Fn() -> clap::Command) {
    CompleteEnv::with_factory(command)
        .var(ASKED)
        .bin("percolator")
        .complete();
}

/// What makes a shell ask: a script for it to read.
pub(crate) fn script(shell: Shell) -> io::Result<Vec<u8>> {
    let shells = Shells::builtins();
    let name = shell.to_string();
    let completer = shells
        .completer(&name)
        .ok_or_else(|| io::Error::other(format!("nothing is known of the shell {name}")))?;
    let mut script = Vec::new();
    let program = std::env::args_os().next().unwrap_or_default();
    let program = program.to_string_lossy();
    // A name is found in PATH; a path is of use in this folder alone.
    let program = if program.contains('/') {
        std::env::current_exe()?.to_string_lossy().into_owned()
    } else {
        program.into_owned()
    };
    completer.write_registration(ASKED, "percolator", "percolator", &program, &mut script)?;
    Ok(script)
}

/// The names of the cluster's tables, as far as it answers at once.
pub(crate) fn tables() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let cluster = cluster(std::env::args_os());
        let asked = percolator_server::run_on_current_thread("complete", async {
            let options = Options {
                request_timeout: TIMEOUT,
                ..Options::default()
            };
            let client = Client::connect_with(&cluster, options).await?;
            client.tables().await
        });
        // There's nobody to tell that it isn't reached.
        let tables = asked.ok().and_then(Result::ok).unwrap_or_default();
        tables
            .into_iter()
            .map(|table| CompletionCandidate::new(table.name))
            .collect()
    })
}

/// Which cluster the words of a command line that isn't complete yet name.
fn cluster(words: impl Iterator<Item = OsString>) -> String {
    let mut named = None;
    let mut words = words.map(|word| word.to_string_lossy().into_owned());
    while let Some(word) = words.next() {
        if word == "-c" || word == "--cluster" {
            named = words.next().or(named);
        } else if let Some(address) = word
            .strip_prefix("--cluster=")
            .or_else(|| word.strip_prefix("-c").filter(|rest| !rest.is_empty()))
        {
            named = Some(address.to_owned());
        }
    }
    named
        .or_else(|| std::env::var("PERCOLATOR_CLUSTER").ok())
        .filter(|address| !address.is_empty())
        .unwrap_or_else(|| crate::CLUSTER.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_is_the_one_that_the_words_name() {
        let of = |words: &str| cluster(words.split(' ').map(OsString::from));
        assert_eq!(of("percolator -c h:1 get"), "h:1");
        assert_eq!(of("percolator get --cluster=h:2 t"), "h:2");
        assert_eq!(of("percolator get -ch:3"), "h:3");
        assert_eq!(of("percolator --cluster h:4"), "h:4");
    }
}
