//! What `percolator bank --verify` notices.

use crate::support::Cluster;

#[test]
fn verify_misses_accounts_and_wants_answers() {
    let cluster = Cluster::threads();
    let file = cluster.data_dir.join("../ledger.jsonl");
    let ledger = file.to_str().expect("text");
    let bank = ["bank", "--clients", "2", "--accounts"];
    let run = ["10", "--duration", "500ms", "--ledger", ledger];
    cluster.run(&[&bank[..], &run].concat()).ok();
    let verify = |accounts| cluster.run(&[&bank[..], &[accounts, "--verify", ledger]].concat());
    verify("10").ok();
    cluster.run(&["bank", "--verify", ledger]).ok();
    verify("9").refused(7, &["account 9 is one too many"]);
    verify("11").refused(7, &["account 10 is not there"]);

    let answers = std::fs::read_to_string(&file).expect("a ledger");
    let write = |text: &str| std::fs::write(&file, text).expect("written");
    write(&format!("{answers}{{\"row\":\"0"));
    verify("10").ok();
    write(&format!("{answers}no answer\n"));
    let number = format!("line {}", answers.lines().count() + 1);
    verify("10").refused(1, &[&number, "is no answer of a bank"]);
    write("");
    verify("10").refused(7, &["nothing to verify"]);

    write(&answers);
    cluster.run(&["delete", "bank", "00000003"]).ok();
    verify("10").refused(7, &["LOST: account 3 is not there"]);
}
