//! The task that calls the owners of tablets.

use std::net::TcpListener;
use std::time::Duration;

use parking_lot::Mutex;
use percolator_client::TabletPeers;
use percolator_tablet::mover::{Arrivals, get_tablets};
use percolator_tablet::{
    MoveCall, MoveRequest, MoveResponse, ServerIncarnation, ServerLocation, TakeRequest, Unanswered,
};

/// Two tablets with one call each, and the order in which the calls ended.
struct Two {
    calls: Mutex<Vec<MoveCall>>,
    ended: Mutex<Vec<u64>>,
}

impl Arrivals for Two {
    fn next_call(&self) -> Option<MoveCall> {
        self.calls.lock().pop()
    }

    fn is_arriving(&self) -> bool {
        true
    }

    fn asked(&self, call: &MoveCall, result: Result<MoveResponse, Unanswered>) {
        assert!(matches!(result, Err(Unanswered::Lost(_))), "{result:?}");
        self.ended.lock().push(call.tablet);
    }
}

/// Otherwise the other tablet would be closed for longer than its owner waits.
#[tokio::test]
async fn an_owner_that_does_not_respond_delays_no_other() {
    let listener = |port| TcpListener::bind(("127.0.0.1", port)).unwrap();
    // It accepts connections, and never responds.
    let silent = listener(0);
    // Nothing listens there.
    let gone = listener(0).local_addr().unwrap();
    let call = |tablet, address: std::net::SocketAddr| MoveCall {
        tablet,
        attempt: 1,
        address: address.to_string(),
        request: MoveRequest::Take(TakeRequest {
            owner: "tablet-0".into(),
            id: tablet,
            epoch: 1,
            table: 5,
            start_row: "a".into(),
            by: ServerLocation {
                server: ServerIncarnation {
                    server: "tablet-1".into(),
                    incarnation: 1,
                },
                address: "tablet-1:1".into(),
            },
            attempt: 1,
            copy: 1,
        }),
    };
    let two = Two {
        calls: Mutex::new(vec![call(2, gone), call(1, silent.local_addr().unwrap())]),
        ended: Mutex::new(Vec::new()),
    };
    let peers = TabletPeers::connect("127.0.0.1:1", Duration::from_secs(1)).unwrap();
    let both = async {
        while two.ended.lock().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = get_tablets(&peers, &two) => {}
        () = both => {}
    }
    assert_eq!(*two.ended.lock(), [2, 1]);
}
