//! What errors say to anyone who typed the command, and what scripts tell them apart by.

use std::process::ExitCode;

use percolator_api::ManifestError;
use percolator_client::{Cell, Timestamp};

/// What was typed isn't possible: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// An error in words of its own that scripts can tell apart like the one it stands for.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct InOtherWords {
    pub(crate) message: String,
    pub(crate) error: percolator_client::Error,
}

/// The command behind `up --` could not be started: exit code 127 or 126, as a shell has it.
#[derive(Debug, thiserror::Error)]
#[error("cannot run {program}")]
pub(crate) struct CannotRun {
    pub(crate) program: String,
    #[source]
    pub(crate) error: std::io::Error,
}

/// What scripts can tell errors apart by; the help of the command lists them.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    use percolator_client::Error as E;
    if error.is::<Usage>() || error.is::<ManifestError>() {
        return ExitCode::from(2);
    }
    if let Some(CannotRun { error, .. }) = error.downcast_ref() {
        let missing = error.kind() == std::io::ErrorKind::NotFound;
        return ExitCode::from(if missing { 127 } else { 126 });
    }
    let in_other_words = error.downcast_ref::<InOtherWords>();
    match error
        .downcast_ref::<E>()
        .or(in_other_words.map(|other| &other.error))
    {
        Some(E::Invalid(_) | E::NoRoom(_) | E::NoSnapshot { .. } | E::NoTransaction { .. }) => {
            ExitCode::from(2)
        }
        Some(E::Conflict(_) | E::TooOld(_)) => ExitCode::from(3),
        Some(E::Unknown { .. }) => ExitCode::from(4),
        Some(E::Timeout { .. } | E::Unavailable(_) | E::ClusterReplaced(_)) => ExitCode::from(5),
        Some(E::UnknownTable { .. } | E::AlreadyExists(_)) => ExitCode::from(6),
        Some(E::Ended | E::Application(_)) | None => ExitCode::FAILURE,
    }
}

/// The error with all its reasons, in one line.
pub(crate) fn told(error: &anyhow::Error) -> String {
    let reasons: Vec<String> = error
        .chain()
        .map(|reason| match reason.downcast_ref() {
            Some(error) => in_words(error),
            None => reason.to_string(),
        })
        .collect();
    reasons.join(": ")
}

/// The client's error, with commands to type where the library names its calls.
pub(crate) fn in_words(error: &percolator_client::Error) -> String {
    match error {
        percolator_client::Error::Unknown {
            start_ts,
            primary,
            why,
        } => unknown(*start_ts, primary, why),
        error => error.to_string(),
    }
}

fn unknown(start_ts: Timestamp, primary: &Cell, why: &str) -> String {
    format!(
        "the outcome of transaction {start_ts} is unknown: its commit was not answered ({why}); ask later with \
         `percolator outcome {start_ts} {}`",
        shell_word(&primary.to_string())
    )
}

/// A word as a shell takes it.
pub(crate) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/:._-+@%=,".contains(c);
    if word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use percolator_client::{Error, TableId};

    use super::*;

    fn unknown_at(row: &'static str) -> Error {
        Error::Unknown {
            start_ts: Timestamp::from_u64(470),
            primary: Cell::new(TableId(1), row, "c"),
            why: "it was lost".into(),
        }
    }

    #[test]
    fn an_unknown_outcome_names_the_command_to_type() {
        let error = Err::<(), _>(unknown_at("zz")).context("lines 1 to 2");
        let error = error.unwrap_err();
        let told = told(&error);
        assert!(told.starts_with("lines 1 to 2: the outcome"), "{told}");
        assert!(told.contains("`percolator outcome 470 1/zz:c`"), "{told}");
        assert_eq!(exit_code(&error), ExitCode::from(4));
        let told = in_words(&unknown_at("it's \n"));
        assert!(
            told.contains("`percolator outcome 470 '1/it'\\''s \\x0a:c'`"),
            "{told}"
        );
    }
}
