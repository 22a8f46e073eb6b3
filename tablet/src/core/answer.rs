//! What was decided, as a message.

use percolator_wire::v1;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

use super::{Asker, Reply};
use crate::Refusal;

pub(super) fn answer(to: Option<Asker>, id: u64, result: Result<Option<Body>, Refusal>) -> Reply {
    let body = match result {
        Ok(body) => body,
        Err(refusal) => Some(Body::Error(v1::RequestError {
            kind: Some(match refusal {
                Refusal::NotServed(not_served) => Kind::NotServed(not_served),
                Refusal::OtherServer(other) => Kind::OtherServer(other),
                Refusal::TooOld(too_old) => Kind::TooOld(too_old.into()),
                Refusal::Invalid(why) => Kind::Invalid(why),
                Refusal::Busy(why) => Kind::Busy(why),
                Refusal::Engine {
                    message, unknown, ..
                } => Kind::Failed(v1::Failed { message, unknown }),
            }),
        })),
    };
    Reply {
        to: to.unwrap_or_default(),
        response: v1::Response { id, body },
    }
}
