//! Money moves between two accounts, and none is lost:
//! `cargo run --release -p percolator-client --example bank [MASTER]`. It prints:
//!
//! ```text
//! bob has 3, joe has 9
//! ```

use percolator_client::{Client, Error, Txn};

async fn balance(txn: &Txn, account: &str) -> Result<i64, Error> {
    let value = txn.get("accounts", account, "balance").await?;
    let text = value.unwrap_or_default();
    String::from_utf8_lossy(&text)
        .parse()
        .map_err(|_| Error::application(format!("{account} has no balance")))
}

async fn transfer(client: &Client, from: &str, to: &str, amount: i64) -> Result<(), Error> {
    client
        .transact(|txn| async move {
            let left = balance(&txn, from).await? - amount;
            if left < 0 {
                return Err(Error::application(format!("{from} has too little money")));
            }
            let right = balance(&txn, to).await? + amount;
            txn.put("accounts", from, "balance", left.to_string())?;
            txn.put("accounts", to, "balance", right.to_string())
        })
        .await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let master = std::env::args()
        .nth(1)
        .or_else(|| std::env::var("PERCOLATOR_CLUSTER").ok())
        .unwrap_or_else(|| "127.0.0.1:7400".into());
    let client = Client::connect(&master).await?;
    match client.create_table("accounts", &["c".into()]).await {
        Ok(()) | Err(Error::AlreadyExists(_)) => {}
        Err(error) => return Err(error.into()),
    }
    client
        .transact(|txn| async move {
            txn.put("accounts", "bob", "balance", "10")?;
            txn.put("accounts", "joe", "balance", "2")
        })
        .await?;
    transfer(&client, "bob", "joe", 7).await?;
    let refused = transfer(&client, "bob", "joe", 7).await;
    let txn = client.begin().await?;
    let (bob, joe) = (balance(&txn, "bob").await?, balance(&txn, "joe").await?);
    assert_eq!((bob, joe), (3, 9));
    anyhow::ensure!(refused.is_err(), "an account was overdrawn");
    client.settle().await;
    println_to_stdout(&format!("bob has {bob}, joe has {joe}"))
}

fn println_to_stdout(line: &str) -> anyhow::Result<()> {
    use std::io::Write;
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
