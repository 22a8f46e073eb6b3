//! One connection at a time, to one of etcd's members.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use crate::answers::Failure;
use crate::pb::kv_client::KvClient;

/// Members that take longer to connect to are passed over.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The answer to a transaction that did not succeed has a value.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// A connection that is made when it is first used. One that has not answered is never used again: it may have gone silent
/// without an end.
pub(crate) struct Connection {
    members: Vec<Endpoint>,
    current: Mutex<Option<Member>>,
}

#[derive(Clone)]
struct Member {
    /// Of the members, taken in turn.
    turn: usize,
    channel: Channel,
}

impl Connection {
    pub(crate) fn new(members: Vec<Endpoint>, timeout: Duration) -> Self {
        let connect_timeout = timeout.min(CONNECT_TIMEOUT);
        let members: Vec<_> = members
            .into_iter()
            .map(|member| member.connect_timeout(connect_timeout).tcp_nodelay(true))
            .collect();
        Self {
            members,
            current: Mutex::new(None),
        }
    }

    /// Sends one request, once.
    pub(crate) async fn ask<T>(
        &self,
        timeout: Duration,
        request: impl AsyncFnOnce(KvClient<Channel>) -> Result<Response<T>, Status>,
    ) -> Result<T, Failure> {
        let member = self.member()?;
        let client = KvClient::new(member.channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        let failure = match tokio::time::timeout(timeout, request(client)).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => Failure::of(&status),
            Err(_) => Failure::Unknown(format!("no answer within {timeout:?}")),
        };
        if !matches!(failure, Failure::Refused(_)) {
            self.pass_over(member.turn);
        }
        Err(failure)
    }

    fn member(&self) -> Result<Member, Failure> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(member) = &*current {
            return Ok(member.clone());
        }
        let member = self.turn(0)?;
        Ok(current.insert(member).clone())
    }

    /// The next one's turn, unless another request has found the same already.
    fn pass_over(&self, turn: usize) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|member| member.turn == turn) {
            *current = self.turn(turn.wrapping_add(1)).ok();
        }
    }

    fn turn(&self, turn: usize) -> Result<Member, Failure> {
        let at = turn.checked_rem(self.members.len());
        let member = at
            .and_then(|at| self.members.get(at))
            .ok_or_else(|| Failure::Refused("no member of etcd was named".to_owned()))?;
        Ok(Member {
            turn,
            channel: member.connect_lazy(),
        })
    }
}
