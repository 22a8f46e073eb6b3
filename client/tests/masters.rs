//! Which of several masters is asked after one that doesn't answer, by requests that must not be carried out twice.

use std::io::ErrorKind;
use std::net::TcpListener;

use percolator_client::{Admin, Error, Timestamp};

/// A master that takes connections and says nothing, and its address.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    listener.set_nonblocking(true).unwrap();
    (listener, address)
}

fn was_asked(master: &TcpListener) -> bool {
    match master.accept() {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        Err(error) => panic!("{error}"),
    }
}

async fn release(masters: &str) -> Error {
    let admin = Admin::connect(masters).unwrap();
    let start_ts = Timestamp::from_millis(1);
    admin.release_gc_lock(start_ts).await.unwrap_err()
}

/// The first one may carry it out later, for what the client knows.
#[tokio::test]
async fn what_was_sent_goes_to_no_other_master() {
    let (first, second) = (silent(), silent());
    let error = release(&format!("{},{}", first.1, second.1)).await;
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(was_asked(&first.0), "{error}");
    assert!(!was_asked(&second.0), "{error}");
}

#[tokio::test]
async fn what_was_never_sent_goes_to_the_next_master() {
    // Nobody listens there.
    let (gone, gone_address) = silent();
    drop(gone);
    let second = silent();
    let error = release(&format!("{gone_address},{}", second.1)).await;
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(was_asked(&second.0), "{error}");
}
