//! Where a register is in an etcd, as it is written.

use std::fmt;
use std::str::FromStr;

use tonic::transport::Endpoint;

/// The members of one etcd, and a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdLocation {
    /// Each HOST:PORT.
    members: Vec<String>,
    key: String,
}

/// A text is no location of a register in etcd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no place in etcd: it is written HOST:PORT/KEY, as in etcd-0:2379/percolator/demo-tso; several members of one etcd \
     are written with commas between"
)]
pub struct LocationError {
    text: String,
}

impl FromStr for EtcdLocation {
    type Err = LocationError;

    /// As `HOST:PORT/KEY`, or `HOST:PORT,HOST:PORT/KEY`.
    fn from_str(text: &str) -> Result<Self, LocationError> {
        let wrong = || LocationError {
            text: text.to_owned(),
        };
        let (members, key) = text.split_once('/').ok_or_else(wrong)?;
        let members: Vec<String> = members.split(',').map(|it| it.trim().to_owned()).collect();
        if key.is_empty() || !members.iter().all(|member| is_address(member)) {
            return Err(wrong());
        }
        let location = Self {
            members,
            key: key.to_owned(),
        };
        location.endpoints().map_err(|_| wrong())?;
        Ok(location)
    }
}

/// As it is written on the command line.
impl fmt::Display for EtcdLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd:{}/{}", self.members.join(","), self.key)
    }
}

impl EtcdLocation {
    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The same, with a key that has this behind it.
    #[must_use]
    pub fn with_suffix(&self, suffix: &str) -> Self {
        Self {
            members: self.members.clone(),
            key: format!("{}{suffix}", self.key),
        }
    }

    pub(crate) fn endpoints(&self) -> Result<Vec<Endpoint>, LocationError> {
        let endpoint = |member: &String| Endpoint::from_shared(format!("http://{member}"));
        let endpoints: Result<_, _> = self.members.iter().map(endpoint).collect();
        endpoints.map_err(|_| LocationError {
            text: self.to_string(),
        })
    }
}

fn is_address(text: &str) -> bool {
    let parts = text.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|it| it > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_read_as_it_is_written() {
        let text = "etcd-0:2379, [::1]:2380/percolator/demo";
        let location: EtcdLocation = text.parse().unwrap();
        assert_eq!(location.key(), "percolator/demo");
        assert_eq!(location.endpoints().unwrap().len(), 2);
        assert_eq!(
            location.with_suffix("-state").to_string(),
            "etcd:etcd-0:2379,[::1]:2380/percolator/demo-state"
        );
        for text in [
            "", "a:1", "a:1/", "a/k", ":1/k", "a:0/k", "a:1,/k", "a b:1/k",
        ] {
            let error = text.parse::<EtcdLocation>().unwrap_err();
            assert!(
                error.to_string().contains("HOST:PORT/KEY"),
                "{text}: {error}"
            );
        }
    }
}
