//! A secondary index that is changed with its table: at every snapshot they agree (paper, section 1: why
//! an index wants transactions).

use std::collections::BTreeSet;

use futures_util::FutureExt;
use percolator_client::Error;
use percolator_client::transport::BoxFuture;

use super::{TableSpec, Workload, number, tagged};
use crate::recorder::Session;

const USERS: &str = "users";
const INDEX: &str = "users_by_city";
const COUNT: u64 = 6;
const CITIES: u64 = 4;
const COLUMN: &str = "city";
const LOOKED_AT: &str = "index: agrees";

/// The workload.
pub struct Index;

fn user(number: u64) -> String {
    format!("user{number}")
}

fn entry(city: i64, user: &str) -> String {
    format!("city{city}/{user}")
}

impl Index {
    async fn change(&self, session: &Session) -> Result<(), Error> {
        let user = user(session.below(COUNT));
        let txn = session.begin().await?;
        let old = txn.get(USERS, &user, COLUMN).await?;
        if let Some(old) = &old {
            txn.delete(INDEX, &entry(number(Some(old)), &user), "")?;
        }
        if session.below(5) == 0 {
            txn.delete(USERS, &user, COLUMN)?;
        } else {
            let city = session.below(CITIES) as i64;
            txn.put(USERS, &user, COLUMN, tagged(city, session))?;
            txn.put(INDEX, &entry(city, &user), "", tagged(1, session))?;
        }
        txn.commit().await.map(drop)
    }

    async fn compare(&self, session: &Session) -> Result<Option<String>, Error> {
        let txn = session.begin().await?;
        let users = txn.scan(USERS, "", "", false).await?;
        let index = txn.scan(INDEX, "", "", true).await?;
        let text = |row: &[u8]| String::from_utf8_lossy(row).into_owned();
        let wanted: BTreeSet<String> = users
            .iter()
            .map(|(row, _, city)| entry(number(Some(city)), &text(row)))
            .collect();
        let found: BTreeSet<String> = index.iter().map(|(row, _, _)| text(row)).collect();
        let snapshot = txn.start_ts();
        Ok((wanted != found).then(|| {
            format!(
                "at snapshot {snapshot} the users make the index {wanted:?}, and it is {found:?}"
            )
        }))
    }
}

impl Workload for Index {
    fn name(&self) -> &'static str {
        "index"
    }

    fn invariants(&self) -> &'static [&'static str] {
        &[LOOKED_AT]
    }

    fn tables(&self) -> Vec<TableSpec> {
        vec![(USERS, vec!["user3"]), (INDEX, vec!["city1", "city3"])]
    }

    fn load<'a>(&'a self, _: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async { Ok(()) }.boxed()
    }

    fn step<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            if session.below(4) == 0 {
                if let Some(wrong) = self.compare(session).await? {
                    session.world.fail(LOOKED_AT, wrong);
                }
                Ok(())
            } else {
                self.change(session).await
            }
        }
        .boxed()
    }

    fn check<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<Option<String>, Error>> {
        self.compare(session).boxed()
    }
}
