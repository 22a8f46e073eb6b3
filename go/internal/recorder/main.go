// Moves money between accounts until it is killed, and writes down what it did and what it was answered, as
// `percolator history check` reads it: recorder NAME GOROUTINES FILE. A balance has the transfer that wrote it, so that none is written
// twice. Every second transfer has a participant, at another proxy, that reads and writes the account that gets the money; its
// balances have a `+`.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"percolator.dev/percolator"
)

const accounts = 8

type line struct {
	Client   string           `json:"client"`
	StartTS  string           `json:"start_ts"`
	CommitTS string           `json:"commit_ts,omitempty"`
	Outcome  string           `json:"outcome"`
	Ops      []map[string]any `json:"ops"`
}

type recorder struct {
	client, other *percolator.Client
	mu            sync.Mutex
	file          *os.File
}

func main() {
	workers, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	client, err := percolator.Connect("")
	if err != nil {
		log.Fatal(err)
	}
	other, err := percolator.Connect(os.Getenv("OTHER_PROXY"))
	if err != nil {
		log.Fatal(err)
	}
	file, err := os.OpenFile(os.Args[3], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		log.Fatal(err)
	}
	all := &recorder{client: client, other: other, file: file}
	for worker := range workers {
		go all.work(fmt.Sprintf("%s.%d", os.Args[1], worker))
	}
	select {}
}

func (r *recorder) work(name string) {
	for number := 1; ; number++ {
		err := r.transfer(context.Background(), name, number)
		switch {
		case err == nil || errors.Is(err, percolator.ErrOutcomeUnknown):
		case errors.Is(err, percolator.ErrAborted) || errors.Is(err, percolator.ErrUnavailable) || isGone(err):
			time.Sleep(rand.N(50 * time.Millisecond))
		default:
			log.Fatal(err)
		}
	}
}

// isGone: the proxy of the transaction that was to be joined was killed in between.
func isGone(err error) bool {
	var failed *percolator.Error
	return errors.As(err, &failed) && failed.Reason == "SESSION_UNKNOWN"
}

func (r *recorder) transfer(ctx context.Context, name string, number int) error {
	var cells []percolator.CellName
	for _, account := range rand.Perm(accounts)[:2] {
		cells = append(cells, percolator.CellName{Table: "accounts", Row: fmt.Sprintf("a%d", account), Column: "balance"})
	}
	mine, mark := cells, ""
	if number%2 == 0 {
		mine, mark = cells[:1], "+"
	}
	tx, err := r.client.Begin(ctx, percolator.WithCells(mine...))
	if err != nil {
		return err
	}
	done := line{Client: name, StartTS: fmt.Sprint(tx.StartTS()), Outcome: "unknown"}
	if done.Ops, err = r.moveMoney(ctx, tx, cells, len(mine) < 2, fmt.Sprintf("%s-%d%s", name, number, mark)); err != nil {
		// Nobody has asked for the commit.
		_ = tx.Rollback(ctx)
		return err
	}
	// It may be killed before it hears of its end.
	r.write(done)
	commitTS, err := tx.Commit(ctx)
	switch {
	case err == nil:
		done.CommitTS, done.Outcome = fmt.Sprint(commitTS), "committed"
	case errors.Is(err, percolator.ErrAborted) || errors.Is(err, percolator.ErrUnavailable):
		done.Outcome = "aborted"
	default:
		return err
	}
	r.write(done)
	return err
}

// moveMoney reads and writes both accounts, the second one as a participant at the other proxy if it is shared.
func (r *recorder) moveMoney(
	ctx context.Context, tx *percolator.Tx, cells []percolator.CellName, shared bool, name string,
) (ops []map[string]any, err error) {
	writers, values := []*percolator.Tx{tx, tx}, tx.Values()
	if shared {
		part, err := r.other.JoinHere(ctx, tx.Token(), cells[1])
		if err != nil {
			return nil, err
		}
		writers[1], values = part, append(slices.Clone(values), part.Values()...)
	}
	var balances []int
	for at, value := range values {
		text, _, _ := strings.Cut(string(value), " ")
		balance, err := strconv.Atoi(text)
		if err != nil {
			return nil, err
		}
		balances = append(balances, balance)
		ops = append(ops, map[string]any{"r": []string{cellOf(cells[at]), string(value)}})
	}
	amount := min(balances[0], 1+rand.IntN(10))
	for at, balance := range []int{balances[0] - amount, balances[1] + amount} {
		value := fmt.Sprintf("%d %s", balance, name)
		if err := writers[at].Put(ctx, "accounts", cells[at].Row, "balance", []byte(value)); err != nil {
			return nil, err
		}
		ops = append(ops, map[string]any{"w": []string{cellOf(cells[at]), value}})
	}
	if shared {
		err = writers[1].Finish(ctx)
	}
	return ops, err
}

func cellOf(cell percolator.CellName) string {
	return fmt.Sprintf("%s/%s:%s", cell.Table, cell.Row, cell.Column)
}

func (r *recorder) write(done line) {
	text, err := json.Marshal(done)
	if err != nil {
		log.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.file.Write(append(text, '\n')); err != nil {
		log.Fatal(err)
	}
}
