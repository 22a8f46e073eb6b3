//! Transfers through the proxy beside the same ones through the client library, and what idle sessions take.

use std::time::Duration;

use anyhow::Context as _;
use percolator_client::{Bytes, Client, Error, Options};
use percolator_wire::proxy::v1;
use percolator_wire::proxy::v1::cell_write::Change;
use percolator_wire::proxy::v1::transactions_client::TransactionsClient;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use super::memory::{self, Process};
use super::workers::{self, Timed};
use super::{Figure, access};
use crate::output::Output;

/// Where the proxy is: `percolator up` says it to its command.
const ADDRESS: &str = "PERCOLATOR_PROXY";
const TABLE: &str = "bench_proxy";
const COLUMN: &str = "balance";
const CLIENTS: [usize; 2] = [1, 16];
/// Clients with a connection each, which ask for one timestamp at a time.
const TIMESTAMP_CLIENTS: usize = 64;

/// The figures, and the memory before and with the idle sessions.
pub(super) struct ProxyFigures {
    pub(super) figures: Vec<Figure>,
    pub(super) memory: Vec<(String, Vec<Process>)>,
}

/// `master`: where it is.
pub(super) async fn measure(
    master: &str,
    client: &Client,
    smoke: bool,
    duration: Duration,
    output: Output,
) -> anyhow::Result<ProxyFigures> {
    let address = std::env::var(ADDRESS);
    let address = address.with_context(|| format!("{ADDRESS} doesn't say where the proxy is"))?;
    let grpc = connect(&address).await?;
    let accounts = if smoke { 100 } else { 10_000 };
    fill(client, accounts).await?;
    let mut figures = Vec::new();
    for clients in CLIENTS {
        output.note(&format!(
            "transfers, {clients} clients, direct and by the proxy ..."
        ));
        let by_library = client.clone();
        let direct = workers::run(
            format!("transfers, {clients} clients"),
            clients,
            duration,
            Timed::Each,
            move |_| direct(by_library.clone(), accounts),
        )
        .await?;
        let by_proxy = grpc.clone();
        let proxied = workers::run(
            format!("by the proxy, {clients} clients"),
            clients,
            duration,
            Timed::Each,
            move |_| proxied(by_proxy.clone(), accounts),
        )
        .await?;
        let ratio = proxied.per_second / direct.per_second;
        let more = proxied.p50_ms - direct.p50_ms;
        figures.push(Figure {
            ratio: Some((ratio, direct.name.clone())),
            note: format!("p50 {more:+.3} ms"),
            ..proxied
        });
        figures.push(direct);
    }
    output.note(&format!(
        "timestamps, {TIMESTAMP_CLIENTS} clients with a connection each, from the oracle and by the proxy ..."
    ));
    figures.extend(relayed(master, &address, duration).await?);
    let sessions = if smoke { 100 } else { 10_000 };
    let mut memory = vec![memory::now("without idle sessions")];
    let mut idle = grpc;
    let mut tokens = Vec::new();
    for _ in 0..sessions {
        let begun = idle.begin(v1::BeginRequest::default()).await?;
        tokens.push(begun.into_inner().session);
    }
    memory.push(memory::now(&format!("with {sessions} idle sessions")));
    for session in tokens {
        // Those that began first may have expired.
        idle.rollback(v1::RollbackRequest { session }).await?;
    }
    Ok(ProxyFigures { figures, memory })
}

/// Timestamps from the oracle itself, and by the proxy as a relay.
async fn relayed(master: &str, proxy: &str, duration: Duration) -> anyhow::Result<Vec<Figure>> {
    let mut figures: Vec<Figure> = Vec::new();
    for (name, relays) in [
        ("timestamps from the oracle", Vec::new()),
        ("timestamps by the proxy", vec![proxy.to_owned()]),
    ] {
        let mut clients = Vec::new();
        for _ in 0..TIMESTAMP_CLIENTS {
            clients.push(Client::connect_through(master, &relays, Options::default()).await?);
        }
        let call = move |number: usize| {
            let client = clients[number].clone();
            async move { client.timestamp().await.map(drop) }
        };
        let name = format!("{name}, {TIMESTAMP_CLIENTS} clients");
        let figure = workers::run(name, TIMESTAMP_CLIENTS, duration, Timed::Each, call).await?;
        let ratio = figures
            .first()
            .map(|direct| (figure.per_second / direct.per_second, direct.name.clone()));
        figures.push(Figure { ratio, ..figure });
    }
    Ok(figures)
}

async fn connect(address: &str) -> anyhow::Result<TransactionsClient<Channel>> {
    let endpoint = Endpoint::new(format!("http://{address}"))?.tcp_nodelay(true);
    let channel = endpoint.connect().await;
    let channel = channel.with_context(|| format!("the proxy at {address} can't be reached"))?;
    Ok(TransactionsClient::new(channel))
}

async fn fill(client: &Client, accounts: u32) -> anyhow::Result<()> {
    access::create(client, TABLE).await?;
    let txn = client.begin().await?;
    for account in 0..accounts {
        txn.put(TABLE, row(account), COLUMN, "100")?;
        txn.ready().await?;
    }
    txn.commit().await?;
    client.settle().await;
    Ok(())
}

fn row(account: u32) -> Bytes {
    format!("account-{account:06}").into()
}

/// Two accounts.
fn pair(accounts: u32) -> [Bytes; 2] {
    let giver = rand::random_range(0..accounts);
    let taker = (giver + rand::random_range(1..accounts)) % accounts;
    [row(giver), row(taker)]
}

/// The balances after a transfer of one.
fn moved(balances: [Option<&Bytes>; 2]) -> [Bytes; 2] {
    let number = |balance: Option<&Bytes>| -> i64 {
        let text = balance.map(|balance| String::from_utf8_lossy(balance));
        text.and_then(|text| text.parse().ok()).unwrap_or_default()
    };
    let [giver, taker] = balances.map(number);
    [
        (giver - 1).to_string().into(),
        (taker + 1).to_string().into(),
    ]
}

async fn direct(client: Client, accounts: u32) -> Result<(), Error> {
    let rows = &pair(accounts);
    loop {
        let txn = client.begin().await?;
        let cells = [0, 1].map(|at: usize| (TABLE, &rows[at][..], COLUMN.as_bytes()));
        let values = txn.batch_get(&cells).await?;
        let balances = moved([0, 1].map(|at: usize| values[at].as_ref()));
        for (row, balance) in rows.iter().zip(balances) {
            txn.put(TABLE, row, COLUMN, balance)?;
        }
        match txn.commit().await {
            Err(error) if error.retryable() => {}
            ended => return ended.map(drop),
        }
    }
}

async fn proxied(
    mut grpc: TransactionsClient<Channel>,
    accounts: u32,
) -> Result<(), tonic::Status> {
    let rows = &pair(accounts);
    let column = Bytes::from_static(COLUMN.as_bytes());
    loop {
        let cells = rows.iter().map(|row| v1::CellName {
            table: TABLE.into(),
            row: row.clone(),
            column: column.clone(),
        });
        let request = v1::BeginRequest {
            snapshot: 0,
            cells: cells.collect(),
        };
        let begun = grpc.begin(request).await?.into_inner();
        let value = |at: usize| begun.values.get(at).and_then(|got| got.value.as_ref());
        let balances = moved([value(0), value(1)]);
        let writes = rows.iter().zip(balances).map(|(row, value)| v1::CellWrite {
            table: TABLE.into(),
            row: row.clone(),
            column: column.clone(),
            change: Some(Change::Put(value)),
        });
        let request = v1::CommitRequest {
            session: begun.session,
            writes: writes.collect(),
        };
        match grpc.commit(request).await {
            Err(status) if status.code() == Code::Aborted => {}
            ended => return ended.map(drop),
        }
    }
}
