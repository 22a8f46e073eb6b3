//! The meaning of a client's error for the request.

use std::error::Error as _;

use hyper_util::client::legacy;

/// Why a request was not carried out, by the certainty of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There is no such object, or no such namespace.
    Missing(String),
    /// The object is there already, or has another version.
    Conflict(String),
    /// The API server did nothing, and won't before permissions change.
    Refused(String),
    /// Nothing was sent, or the API server did nothing for now.
    Unavailable(String),
    /// It was carried out, or was not, or will be.
    Unknown(String),
}

impl Failure {
    pub(crate) fn of(error: &kube::Error) -> Self {
        let reason = error.to_string();
        let status = match error {
            kube::Error::Api(status) => status,
            kube::Error::BuildRequest(_) => return Self::Refused(reason),
            other if is_not_connected(other) => return Self::Unavailable(reason),
            _ => return Self::Unknown(reason),
        };
        let reason = format!("{} ({})", status.message, status.code);
        match status.code {
            // For now: an API server that has just started returns this until it knows its roles and service accounts
            // (kubernetes/kubernetes#121635), and a missing role may come. A server that took it for good would end, and leave the
            // leader without a promise.
            401 => Self::Unavailable(format!(
                "{reason}; the API server doesn't take the token of this pod's service account"
            )),
            403 => Self::Unavailable(format!(
                "{reason}; a role has to allow get and patch of this ConfigMap to the pod's service account"
            )),
            404 => Self::Missing(reason),
            409 => Self::Conflict(reason),
            // Too many requests: sorted out before anything else is done with them.
            429 => Self::Unavailable(reason),
            400 | 402 | 405..=407 | 411 | 413..=415 | 422 => Self::Refused(reason),
            // 500 and 504 also come for writes that etcd may have carried out, after a time-out or a change of its leader; 502
            // and 503 also from a proxy, for any request.
            _ => Self::Unknown(reason),
        }
    }
}

fn is_not_connected(error: &kube::Error) -> bool {
    let mut sources = std::iter::successors(error.source(), |error| (*error).source());
    sources.any(|error| {
        error
            .downcast_ref::<legacy::Error>()
            .is_some_and(legacy::Error::is_connect)
    })
}
