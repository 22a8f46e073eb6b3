//! Greedy clients of a proxy: one that begins sessions without end, one that would write a gigabyte, one that would read many, one that
//! never reads an answer, and one whose scans nobody reads. Each has an address of its own, and what others do goes on beside them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::http::json;
use crate::support::server::resident_kib;
use crate::support::sessions::shown;
use crate::support::{Cluster, block_on, wait_for};
use percolator_wire::proxy::v1;
use percolator_wire::proxy::v1::transactions_client::TransactionsClient;
use tonic::transport::Endpoint;
use tonic::{Code, Streaming};

/// What the sessions' client asks for.
const SESSIONS: usize = 100_000;
/// What the writer would write, in values of [`VALUE_BYTES`].
const GIGABYTE: usize = 1 << 30;
const VALUE_BYTES: usize = 4 << 20;
/// Answers that nobody reads, of a value of [`VALUE_BYTES`] each: four times what may be on its way.
const UNREAD: usize = 256;
const SCANS: usize = 400;

/// A connection of a client at this address of the machine.
struct Connection {
    answers: BufReader<TcpStream>,
}

impl Connection {
    /// All of 127.0.0.0/8 is this machine.
    fn new(client: u8, proxy: &str) -> Self {
        let proxy: SocketAddr = proxy.parse().expect("an address");
        let connecting = async {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.bind((IpAddr::from([127, 0, 0, client]), 0).into())?;
            socket.connect(proxy).await?.into_std()
        };
        let stream = block_on(connecting).expect("connected");
        stream.set_nonblocking(false).expect("blocking");
        stream.set_nodelay(true).expect("no delay");
        Self {
            answers: BufReader::new(stream),
        }
    }

    /// Sends a call, whose answer nobody has to read.
    fn send(&mut self, method: &str, body: &str) {
        let length = body.len();
        let head = format!(
            "POST /v1/{method} HTTP/1.1\r\nHost: proxy\r\nContent-Length: {length}\r\n\r\n"
        );
        let stream = self.answers.get_mut();
        let sent = stream.write_all(head.as_bytes());
        // A request that is refused is not read to its end.
        let _ = sent.and_then(|()| stream.write_all(body.as_bytes()));
    }

    /// Calls a method: the status, and the answer.
    fn call(&mut self, method: &str, body: &str) -> std::io::Result<(u16, String)> {
        self.send(method, body);
        let (status, length) = self.head()?;
        Ok((status, self.body(length)?))
    }

    /// The status, and how long the answer is.
    fn head(&mut self) -> std::io::Result<(u16, usize)> {
        let (mut line, mut length) = (String::new(), 0);
        self.answers.read_line(&mut line)?;
        let status = line.split(' ').nth(1);
        let status = status.and_then(|status| status.parse().ok());
        loop {
            line.clear();
            self.answers.read_line(&mut line)?;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a number");
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let status = status.ok_or(std::io::ErrorKind::UnexpectedEof)?;
        Ok((status, length))
    }

    fn body(&mut self, length: usize) -> std::io::Result<String> {
        let mut body = vec![0; length];
        self.answers.read_exact(&mut body)?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// The token of a session, unless it is refused.
    fn begin(&mut self) -> Result<String, String> {
        let (status, answer) = self.call("begin", "{}").expect("an answer");
        match status {
            200 => Ok(json(&answer)["session"]
                .as_str()
                .expect("a token")
                .to_owned()),
            _ => Err(reason(&answer)),
        }
    }
}

fn reason(answer: &str) -> String {
    let reason = &json(answer)["error"]["details"][0]["reason"];
    reason.as_str().unwrap_or(answer).to_owned()
}

/// One that counts up a cell: how often, until it is over, and how long a transaction took at the most.
fn ordinary(proxy: &str, over: &AtomicBool, counted: &AtomicU64) -> Duration {
    let mut connection = Connection::new(1, proxy);
    let mut longest = Duration::ZERO;
    let cell = r#""table":"t","row":"counter","column":"n""#;
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        let mut call = |method: &str, body: String| {
            let (status, answer) = connection.call(method, &body).expect("an answer");
            assert_eq!(status, 200, "{method}: {answer}");
            json(&answer)
        };
        let begun = call("begin", format!("{{\"cells\":[{{{cell}}}]}}"));
        let session = begun["session"].as_str().expect("a token");
        let before = begun["values"][0]["value"]
            .as_str()
            .map_or(0, |value| value.parse().expect("a number"));
        assert_eq!(before, counted.load(Ordering::Relaxed));
        let after = before + 1;
        let write = format!("{{{cell},\"value\":\"{after}\"}}");
        call(
            "commit",
            format!("{{\"session\":\"{session}\",\"writes\":[{write}]}}"),
        );
        counted.store(after, Ordering::Relaxed);
        longest = longest.max(began.elapsed());
    }
    longest
}

/// Begins sessions until it has asked for enough: how many it got, and why no more.
fn many_sessions(proxy: &str) -> (usize, String) {
    let got = AtomicU64::new(0);
    let refused = parking_lot::Mutex::new(String::new());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut connection = Connection::new(2, proxy);
                for _ in 0..SESSIONS / 8 {
                    match connection.begin() {
                        Ok(_) => drop(got.fetch_add(1, Ordering::Relaxed)),
                        Err(reason) => *refused.lock() = reason,
                    }
                }
            });
        }
    });
    (got.into_inner() as usize, refused.into_inner())
}

/// Writes into sessions, each until it is refused: the bytes that were taken, and the reasons.
fn gigabyte(proxy: &str) -> (usize, Vec<String>) {
    let mut connection = Connection::new(3, proxy);
    let value = "x".repeat(VALUE_BYTES);
    let (mut taken, mut reasons) = (0, Vec::new());
    let mut session = connection.begin().expect("a session");
    for number in 0..GIGABYTE / VALUE_BYTES {
        let body = format!(
            "{{\"session\":\"{session}\",\"table\":\"t\",\"row\":\"{number}\",\"column\":\"c\",\"value\":\"{value}\"}}"
        );
        let (status, answer) = connection.call("put", &body).expect("an answer");
        if status == 200 {
            taken += VALUE_BYTES;
            continue;
        }
        let reason = reason(&answer);
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
        session = connection.begin().expect("a session");
    }
    (taken, reasons)
}

/// Asks for a large value on many connections at once, and reads no more than how the answers begin: some are refused.
fn unread(proxy: &str) -> Vec<Connection> {
    let mut first = Connection::new(4, proxy);
    let mut all = Vec::new();
    let mut sessions = Vec::new();
    for number in 0..UNREAD {
        // A session has a bound of its own.
        if number % 32 == 0 {
            sessions.push(first.begin().expect("a session"));
        }
        let session = sessions.last().expect("one");
        let mut connection = Connection::new(4, proxy);
        let cell = r#""table":"t","row":"large","column":"c""#;
        connection.send("get", &format!("{{\"session\":\"{session}\",{cell}}}"));
        all.push(connection);
    }
    let mut refused = 0;
    for connection in &mut all {
        let (status, length) = connection.head().expect("an answer");
        if status == 429 {
            assert_eq!(reason(&connection.body(length).expect("a body")), "BYTES");
            refused += 1;
        }
    }
    eprintln!(
        "{} answers that nobody reads, {refused} were refused",
        UNREAD - refused
    );
    assert!(refused >= UNREAD / 2, "{refused} of {UNREAD} were refused");
    // It can end what it has.
    for session in sessions {
        let body = format!("{{\"session\":\"{session}\"}}");
        assert_eq!(first.call("rollback", &body).expect("an answer").0, 200);
    }
    all.push(first);
    all
}

/// One large value of its own, as often as a call may ask for it.
fn one_value_many_times(proxy: &str) {
    let mut connection = Connection::new(6, proxy);
    let session = connection.begin().expect("a session");
    let (cell, value) = (
        r#""table":"t","row":"own","column":"c""#,
        "z".repeat(VALUE_BYTES),
    );
    let put = format!("{{\"session\":\"{session}\",{cell},\"value\":\"{value}\"}}");
    assert_eq!(connection.call("put", &put).expect("an answer").0, 200);
    let cells = vec![format!("{{{cell}}}"); 256].join(",");
    let get = format!("{{\"session\":\"{session}\",\"cells\":[{cells}]}}");
    let (status, answer) = connection.call("batch_get", &get).expect("an answer");
    assert_eq!((status, &*reason(&answer)), (429, "BYTES"));
}

/// Asks for a large value as often as a call may, in as many calls as a session may have at a time.
fn one_value_in_many_calls(proxy: &str) -> Vec<Connection> {
    let session = Connection::new(8, proxy).begin().expect("a session");
    let cell = r#"{"table":"t","row":"large","column":"c"}"#;
    let cells = vec![cell; 256].join(",");
    let get = format!("{{\"session\":\"{session}\",\"cells\":[{cells}]}}");
    let ask = || {
        let mut connection = Connection::new(8, proxy);
        connection.send("batch_get", &get);
        connection
    };
    std::iter::repeat_with(ask).take(32).collect()
}

/// Begins scans on many connections, and reads nothing.
fn scans(proxy: &str) -> Vec<Connection> {
    let mut first = Connection::new(5, proxy);
    let mut all = Vec::new();
    let mut session = String::new();
    for number in 0..SCANS {
        // A session has a bound of its own.
        if number % 16 == 0 {
            session = match first.begin() {
                Ok(session) => session,
                Err(reason) => {
                    assert_eq!(reason, "BYTES");
                    eprintln!("{number} scans that nobody reads");
                    break;
                }
            };
        }
        let mut connection = Connection::new(5, proxy);
        connection.send(
            "scan",
            &format!("{{\"session\":\"{session}\",\"table\":\"t\"}}"),
        );
        all.push(connection);
    }
    all.push(first);
    all
}

/// Begins scans in streams of one connection, which opens next to no window for their answers: those that are not refused.
async fn streams(proxy: &str) -> Vec<Streaming<v1::ScanResponse>> {
    let endpoint = Endpoint::new(format!("http://{proxy}")).expect("an address");
    let endpoint = endpoint
        .local_address(Some(IpAddr::from([127, 0, 0, 7])))
        .initial_connection_window_size(Some(1 << 10))
        .initial_stream_window_size(Some(1 << 10));
    let channel = endpoint.connect().await.expect("connected");
    let mut grpc = TransactionsClient::new(channel);
    let (mut open, mut refused) = (Vec::new(), 0);
    let mut session = String::new();
    for number in 0..SCANS {
        if number % 16 == 0 {
            let begun = grpc.begin(v1::BeginRequest::default()).await;
            session = begun.expect("a session").into_inner().session;
        }
        let scan = v1::ScanRequest {
            session: session.clone(),
            table: "t".into(),
            ..v1::ScanRequest::default()
        };
        match grpc.scan(scan).await {
            Ok(answer) => open.push(answer.into_inner()),
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                refused += 1;
            }
        }
    }
    eprintln!(
        "{} streams without a window, {refused} were refused",
        open.len()
    );
    // More are open where earlier ones have ended with their sessions meanwhile.
    assert!(refused >= SCANS / 4, "{refused} of {SCANS} were refused");
    open
}

/// So that nobody waits for another one if the test fails.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_client_with_many_connections_leaves_some_for_others() {
    let variables = [("PERCOLATOR_PROXY_CONNECTIONS_MAX", "64")];
    let cluster = Cluster::start_with(&[], &variables);
    let proxy = cluster.proxy();
    let mut open = Vec::new();
    let begun = |client| Connection::new(client, &proxy).call("begin", "{}");
    // A connection that is refused is closed before it answers anything.
    while open.len() < 64 {
        let mut connection = Connection::new(2, &proxy);
        if connection.call("begin", "{}").is_err() {
            break;
        }
        open.push(connection);
    }
    assert_eq!(open.len(), 32, "half of them");
    let (status, _) = begun(3).expect("another client");
    assert_eq!(status, 200);
    let metrics = cluster.metrics_address("proxy-0");
    let refused = "percolator_proxy_refused_connections_total";
    let refused = block_on(shown(&metrics, refused));
    assert_eq!(refused, Some(1.0));
    drop(open);
    wait_for("room for the first client", || begun(2).ok());
}

#[test]
fn greedy_clients_harm_nobody_else() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "t"]).ok();
    let proxy = cluster.proxy();
    let large = "y".repeat(VALUE_BYTES);
    let mut loader = Connection::new(1, &proxy);
    let session = loader.begin().expect("a session");
    let put = format!(
        "{{\"session\":\"{session}\",\"table\":\"t\",\"row\":\"large\",\"column\":\"c\",\"value\":\"{large}\"}}"
    );
    for (method, body) in [
        ("put", put),
        ("commit", format!("{{\"session\":\"{session}\"}}")),
    ] {
        let (status, answer) = loader.call(method, &body).expect("an answer");
        assert_eq!(status, 200, "{answer}");
    }
    let (over, counted) = (AtomicBool::new(false), AtomicU64::new(0));
    let over = &over;
    std::thread::scope(|scope| {
        let others = scope.spawn(|| ordinary(&proxy, over, &counted));
        let _ended = SetWhenDropped(over);
        let goes_on = |beside: &str| {
            let before = counted.load(Ordering::Relaxed);
            wait_for(&format!("transactions beside {beside}"), || {
                assert!(!others.is_finished(), "the ordinary client has failed");
                (counted.load(Ordering::Relaxed) > before + 10).then_some(())
            });
            let kib = resident_kib(cluster.pid("proxy-0"));
            eprintln!("beside {beside}: the proxy has {} MiB", kib >> 10);
            assert!(kib < 700 << 10, "{kib} KiB");
        };
        let _scans = scans(&proxy);
        goes_on("scans that nobody reads");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let _streams = runtime.block_on(streams(&proxy));
        goes_on("streams without a window");
        let _unread = unread(&proxy);
        goes_on("answers that nobody reads");
        let calls = one_value_in_many_calls(&proxy);
        goes_on("calls that read a gigabyte each");
        for mut call in calls {
            let (status, length) = call.head().expect("an answer");
            let answer = call.body(length).expect("a body");
            assert_eq!((status, &*reason(&answer)), (429, "BYTES"));
        }
        one_value_many_times(&proxy);
        goes_on("a gigabyte in one answer");
        let (taken, reasons) = gigabyte(&proxy);
        assert_eq!(reasons, ["SESSION_BYTES", "BYTES"]);
        assert!(taken <= 128 << 20, "{taken} bytes");
        goes_on("a gigabyte");
        let (got, reason) = many_sessions(&proxy);
        assert_eq!(reason, "SESSIONS");
        eprintln!("{got} sessions of {SESSIONS}");
        goes_on("sessions without end");
        over.store(true, Ordering::Relaxed);
        let longest = others.join().expect("no transaction has failed");
        let counted = counted.load(Ordering::Relaxed);
        eprintln!("{counted} transactions of another client, the longest took {longest:?}");
    });
}
