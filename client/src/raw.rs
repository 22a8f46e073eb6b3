//! Plain access to a server's engine, for benchmarks and the simulator.

use percolator_wire::v1;

use crate::attempts::Attempt;
use crate::{Client, Error};

impl Client {
    /// Plain access to a tablet server's engine, past every transaction. For benchmarks of servers
    /// that were started for it.
    #[doc(hidden)]
    pub async fn raw(
        &self,
        address: &str,
        body: v1::request::Body,
    ) -> Result<v1::response::Body, Error> {
        match self
            .router
            .send(address, Vec::new(), body, self.deadline())
            .await
        {
            Attempt::Done(body) => Ok(body),
            Attempt::Again(why)
            | Attempt::Busy(why)
            | Attempt::Moved(why)
            | Attempt::Lost(why)
            | Attempt::NeverSent(why)
            | Attempt::Frozen(why)
            | Attempt::Damaged(why) => Err(Error::Unavailable(why)),
            Attempt::Invalid(why) => Err(Error::Invalid(why)),
            Attempt::TooOld(too_old) => Err(Error::TooOld(too_old)),
        }
    }
}
