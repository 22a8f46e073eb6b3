//! A tablet that is handed over from one server to another.

use std::time::Duration;

use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;
use percolator_tablet::core::TabletCommand;
use percolator_tablet::{
    MoveCall, MoveRequest, MoveResponse, ServerIncarnation, ServerLocation, Unanswered,
};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

use super::{INCARNATION, Server, cell, refused, tablet};

/// The owner of tablet 1 of table 5, rows a to m, and a server without any.
pub(crate) struct Two {
    pub(crate) owner: Server,
    pub(crate) other: Server,
    pub(crate) now: Duration,
}

pub(crate) fn at(server: &str) -> ServerLocation {
    ServerLocation {
        server: ServerIncarnation {
            server: server.to_owned(),
            incarnation: INCARNATION,
        },
        address: format!("{server}:1"),
    }
}

impl Two {
    pub(crate) fn new() -> Self {
        let mut two = Self {
            owner: Server::new(),
            other: Server::empty(),
            now: Duration::from_secs(1),
        };
        two.owner.put("b", "1", 10, 11);
        two.owner.put("c", "old", 12, 13);
        two.owner.put("c", "new", 14, 15);
        two
    }

    /// Raises the owner's barrier, as the master does.
    pub(crate) fn raise_barrier_of_owner(&mut self, barrier: u64) {
        let points = Points {
            barrier: Timestamp::from_u64(barrier),
            ..Points::default()
        };
        self.owner.core.reach(points, &mut self.owner.replies);
        self.owner.settle();
    }

    /// The master's command to get tablet 1 at this epoch.
    pub(crate) fn begin(&mut self, epoch: u64) -> Option<Body> {
        self.other.command(TabletCommand::Import {
            tablet: percolator_protocol::types::Tablet {
                epoch,
                ..tablet(1, 5, "a", "m")
            },
            from: at("tablet-0"),
            address: "tablet-0:2".into(),
        })
    }

    pub(crate) fn call(&mut self) -> MoveCall {
        self.now += Duration::from_millis(300);
        self.other
            .core
            .next_call(self.now)
            .expect("something to ask")
    }

    /// Passes the call to the owner, and the response to the receiver, which has not written it down yet.
    pub(crate) fn ask(&mut self, call: &MoveCall) -> Body {
        let id = self.owner.send_as_it_is(call.request.clone().into());
        self.owner.settle();
        let answer = self.owner.answer(id).expect("an answer");
        let response = MoveResponse::try_from(answer.clone());
        let response = response.map_err(|refused| Unanswered::Lost(refused.to_string()));
        self.other
            .core
            .asked(self.now, call, response, &mut self.other.replies);
        answer
    }

    /// The same, and writes it down.
    pub(crate) fn carry(&mut self, call: &MoveCall) -> Body {
        let answer = self.ask(call);
        self.other.settle();
        answer
    }

    /// Until the owner is asked to hand it over.
    pub(crate) fn copy(&mut self) -> MoveCall {
        for _ in 0..50 {
            let call = self.call();
            if matches!(call.request, MoveRequest::Take(_)) {
                return call;
            }
            self.carry(&call);
        }
        panic!("the copy doesn't end");
    }

    pub(crate) fn hand_over(&mut self) {
        let call = self.copy();
        let answer = self.carry(&call);
        assert_eq!(taken(&answer), v1::Taken::Moved);
    }
}

pub(crate) fn taken(answer: &Body) -> v1::Taken {
    match answer {
        Body::TakeTablet(answer) => answer.taken(),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn tablets(server: &Server) -> Vec<(u64, u64)> {
    let tablets = server.core.report().tablets.into_iter();
    tablets.map(|it| (it.id, it.epoch)).collect()
}

pub(crate) fn get(row: &'static str, start_ts: u64) -> Ask {
    Ask::Get(v1::GetRequest {
        start_ts,
        cells: vec![cell(row)],
        ..Default::default()
    })
}

pub(crate) fn ask_at(server: &mut Server, epoch: u64, ask: Ask) -> Option<Body> {
    let id = server.send_to(1, epoch, ask);
    server.settle();
    server.answer(id)
}

pub(crate) fn value(server: &mut Server, epoch: u64, row: &'static str, ts: u64) -> Option<String> {
    let Some(Body::Get(got)) = ask_at(server, epoch, get(row, ts)) else {
        panic!("no answer about {row}");
    };
    match got.results[0].result.clone() {
        Some(v1::get_result::Result::Found(found)) => {
            Some(String::from_utf8_lossy(&found.value).into_owned())
        }
        Some(v1::get_result::Result::Absent(_)) => None,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn not_served(body: Option<Body>) -> v1::NotServed {
    match refused(body) {
        Kind::NotServed(not) => not,
        other => panic!("{other:?}"),
    }
}
