// Moves money between accounts until it is killed, and writes down what it did and what it was answered, as
// `percolator history check` reads it: recorder NAME GOROUTINES FILE. A balance has the transfer that wrote it, so that none is written
// twice.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
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
	client *percolator.Client
	mu     sync.Mutex
	file   *os.File
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
	file, err := os.OpenFile(os.Args[3], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		log.Fatal(err)
	}
	all := &recorder{client: client, file: file}
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
		case errors.Is(err, percolator.ErrAborted) || errors.Is(err, percolator.ErrUnavailable):
			time.Sleep(rand.N(50 * time.Millisecond))
		default:
			log.Fatal(err)
		}
	}
}

func (r *recorder) transfer(ctx context.Context, name string, number int) error {
	var cells []percolator.CellName
	for _, account := range rand.Perm(accounts)[:2] {
		cells = append(cells, percolator.CellName{Table: "accounts", Row: fmt.Sprintf("a%d", account), Column: "balance"})
	}
	tx, err := r.client.Begin(ctx, percolator.WithCells(cells...))
	if err != nil {
		return err
	}
	done := line{Client: name, StartTS: fmt.Sprint(tx.StartTS()), Outcome: "unknown"}
	var balances []int
	for at, value := range tx.Values() {
		text, _, _ := strings.Cut(string(value), " ")
		balance, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		balances = append(balances, balance)
		done.Ops = append(done.Ops, map[string]any{"r": []string{cellOf(cells[at]), string(value)}})
	}
	amount := min(balances[0], 1+rand.IntN(10))
	for at, balance := range []int{balances[0] - amount, balances[1] + amount} {
		value := fmt.Sprintf("%d %s-%d", balance, name, number)
		if err := tx.Put(ctx, "accounts", cells[at].Row, "balance", []byte(value)); err != nil {
			return err
		}
		done.Ops = append(done.Ops, map[string]any{"w": []string{cellOf(cells[at]), value}})
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
