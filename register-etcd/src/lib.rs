//! A register in a key of etcd: one transaction compares the key's revision and puts the value.
//!
//! It speaks the few messages of etcd's API that this takes (`proto/`). The crates that speak all of it are built with a
//! system `protoc`, which this project does without.

mod answers;
mod connection;
mod location;
#[cfg(feature = "testbed")]
pub mod testbed;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use percolator_register::{
    BoxFuture, LoadError, Register, RegisterVersion, StoredRecord, SwapError, VersionFloor,
    VersionedValue, WriteId, check_size,
};
use tonic::transport::Endpoint;

pub use crate::location::{EtcdLocation, LocationError};

use crate::answers::{Failure, TxnOutcome};
use crate::connection::Connection;
use crate::pb::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::pb::request_op::Request;
use crate::pb::{Compare, PutRequest, RangeRequest, RequestOp, TxnRequest};

/// Messages and client as generated from `proto/`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::too_many_lines)]
mod pb {
    tonic::include_proto!("etcdserverpb");
}

/// Messages of the values in etcd.
#[allow(missing_docs, unreachable_pub, clippy::all)]
mod mvccpb {
    tonic::include_proto!("mvccpb");
}

/// A register in a key of etcd. Its versions are the key's revisions (`mod_revision`).
pub struct EtcdRegister {
    connection: Connection,
    key: Bytes,
    timeout: Duration,
    floor: VersionFloor,
}

impl fmt::Debug for EtcdRegister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdRegister")
            .field("key", &self.register())
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl EtcdRegister {
    /// A request whose answer takes longer is given up.
    pub const TIMEOUT: Duration = Duration::from_secs(2);

    /// The register in `key`, at the members of one etcd. They are asked one at a time, the next one when one does not
    /// answer. Endpoints come with their TLS. To be called within a runtime.
    pub fn new(members: Vec<Endpoint>, key: impl Into<Vec<u8>>) -> Self {
        Self {
            connection: Connection::new(members, Self::TIMEOUT),
            key: Bytes::from(key.into()),
            timeout: Self::TIMEOUT,
            floor: VersionFloor::default(),
        }
    }

    /// The register at a location, over connections without TLS. To be called within a runtime.
    ///
    /// # Errors
    /// A member's address is none.
    pub fn at(location: &EtcdLocation) -> Result<Self, LocationError> {
        Ok(Self::new(location.endpoints()?, location.key()))
    }

    /// The same, which waits for answers for so long in place of [`Self::TIMEOUT`].
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    fn register(&self) -> String {
        self.key.escape_ascii().to_string()
    }

    fn damaged(&self, reason: String) -> LoadError {
        LoadError::Damaged {
            register: self.register(),
            reason,
        }
    }

    async fn load_value(&self) -> Result<Option<VersionedValue>, LoadError> {
        let least = self.floor.get();
        let range = RangeRequest {
            key: self.key.clone(),
        };
        let asked = self
            .connection
            .ask(self.timeout, async |mut etcd| etcd.range(range).await);
        let answer = asked.await.map_err(|failure| match failure {
            Failure::Refused(reason) => LoadError::Refused {
                register: self.register(),
                reason,
            },
            Failure::Unavailable(reason) | Failure::Unknown(reason) => LoadError::Unavailable {
                register: self.register(),
                reason,
            },
        })?;
        let found = match answers::only(answer.kvs).map_err(|reason| self.damaged(reason))? {
            None => None,
            Some((version, bytes)) => {
                let record = StoredRecord::decode(bytes).map_err(|reason| self.damaged(reason))?;
                Some(VersionedValue {
                    value: record.value,
                    version,
                    write: record.write,
                })
            }
        };
        let version = found.as_ref().map(|found| found.version);
        self.floor
            .check(least, version)
            .map_err(|reason| self.damaged(reason))?;
        Ok(found)
    }

    async fn swap_value(
        &self,
        expected: Option<RegisterVersion>,
        value: &[u8],
    ) -> Result<RegisterVersion, SwapError> {
        check_size(value)?;
        let write = WriteId::random();
        let txn = self.txn(expected, StoredRecord::encode(write, &[value]));
        let asked = self
            .connection
            .ask(self.timeout, async |mut etcd| etcd.txn(txn).await);
        let register = self.register();
        let answer = asked.await.map_err(|failure| match failure {
            Failure::Refused(reason) => SwapError::Refused { register, reason },
            Failure::Unavailable(reason) => SwapError::Unavailable { register, reason },
            Failure::Unknown(reason) => SwapError::Unknown {
                register,
                write,
                reason,
            },
        })?;
        match answers::outcome(answer, write) {
            Ok(TxnOutcome::Swapped(version)) => {
                self.floor.raise(version);
                Ok(version)
            }
            Ok(TxnOutcome::Compared(found)) => Err(SwapError::Conflict {
                register: self.register(),
                expected,
                found,
            }),
            Err(reason) => Err(SwapError::Unknown {
                register: self.register(),
                write,
                reason,
            }),
        }
    }

    fn txn(&self, expected: Option<RegisterVersion>, record: Vec<u8>) -> TxnRequest {
        // 0 is for a key that does not exist. A version that etcd can't have given compares with what no key has.
        let revision = expected.map_or(0, |version| {
            let revision = i64::try_from(version.0).ok();
            revision.filter(|it| *it > 0).unwrap_or(i64::MAX)
        });
        let compare = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: self.key.clone(),
            target_union: Some(TargetUnion::ModRevision(revision)),
        };
        let put = Request::RequestPut(PutRequest {
            key: self.key.clone(),
            value: record.into(),
        });
        let range = Request::RequestRange(RangeRequest {
            key: self.key.clone(),
        });
        let only = |request| {
            vec![RequestOp {
                request: Some(request),
            }]
        };
        TxnRequest {
            compare: vec![compare],
            success: only(put),
            failure: only(range),
        }
    }
}

impl Register for EtcdRegister {
    fn load(&self) -> BoxFuture<'_, Result<Option<VersionedValue>, LoadError>> {
        Box::pin(self.load_value())
    }

    fn swap(
        &self,
        expected: Option<RegisterVersion>,
        value: Vec<u8>,
    ) -> BoxFuture<'_, Result<RegisterVersion, SwapError>> {
        Box::pin(async move { self.swap_value(expected, &value).await })
    }
}
