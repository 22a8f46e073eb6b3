//! The reasons why a server sent no response, for people to read.

use std::time::Duration;

/// The reason why a server sent no response.
#[derive(Debug, PartialEq)]
pub(crate) enum NoResponse {
    /// It sent nothing for this long.
    Silent(Duration),
    /// The message of the server, or of the system.
    Reason(String),
}

/// What failed, for a person: with the server's role and its address.
pub(crate) fn failed(role: &str, address: &str, why: &NoResponse) -> String {
    match why {
        NoResponse::Silent(time) => format!(
            "the {role} at {address} did not answer for {} s",
            in_seconds(*time)
        ),
        NoResponse::Reason(reason) => format!("the {role} at {address}: {reason}"),
    }
}

/// In whole seconds, and where it is less than one in tenths.
pub(crate) fn in_seconds(time: Duration) -> String {
    let tenths = usize::from(time < Duration::from_secs(1));
    format!("{:.tenths$}", time.as_secs_f64())
}

/// What is behind an error of a connection on which nobody is silent for longer than `silence`.
pub(crate) fn no_response(
    error: &(dyn std::error::Error + 'static),
    silence: Duration,
) -> NoResponse {
    let mut next = Some(error);
    while let Some(error) = next {
        // Nobody but the connection's own timers says so: hyper's errors have no type to ask for it.
        let said = error.to_string();
        let system = error.downcast_ref::<std::io::Error>();
        if error.is::<tonic::TimeoutExpired>()
            || said == "keep-alive timed out"
            || system.is_some_and(|error| error.kind() == std::io::ErrorKind::TimedOut)
        {
            return NoResponse::Silent(silence);
        }
        next = error.source();
    }
    NoResponse::Reason(cause(error))
}

/// [`no_response`], of a response that is a status: the server's own message, if it has one.
pub(crate) fn no_response_of_status(status: &tonic::Status, silence: Duration) -> NoResponse {
    match std::error::Error::source(status) {
        Some(source) => no_response(source, silence),
        None if status.message() == tonic::TimeoutExpired(()).to_string() => {
            NoResponse::Silent(silence)
        }
        None => NoResponse::Reason(status.message().to_owned()),
    }
}

/// The innermost reason, which says what happened.
pub(crate) fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// Whether a status is not a server's, but the reason why there is none.
pub(crate) fn is_of_the_way(status: &tonic::Status) -> bool {
    std::error::Error::source(status).is_some()
        || status.message() == tonic::TimeoutExpired(()).to_string()
}
