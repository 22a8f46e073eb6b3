// The bank: clients move money between accounts, and a reader checks at snapshots that none is lost or made.
//
//	percolator up &
//	cd go && go run ./examples/bank
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"

	"percolator.dev/percolator"
)

const (
	table        = "accounts"
	column       = "balance"
	firstBalance = 100
)

func main() {
	log.SetFlags(0)
	proxy := flag.String("proxy", "", "HOST:PORT; default: PERCOLATOR_PROXY, or "+percolator.DefaultAddress)
	accounts := flag.Int("accounts", 20, "how many")
	clients := flag.Int("clients", 4, "how many")
	transfers := flag.Int("transfers", 50, "of each client")
	flag.Parse()
	client, err := percolator.Connect(*proxy)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := run(context.Background(), client, *accounts, *clients, *transfers); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, client *percolator.Client, accounts, clients, transfers int) error {
	if err := client.CreateTable(ctx, table); err != nil && !errors.Is(err, percolator.ErrAlreadyExists) {
		return err
	}
	err := client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
		for number := range accounts {
			if err := put(ctx, tx, account(number), firstBalance); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}

	var attempts atomic.Int64
	var workers sync.WaitGroup
	failures := make(chan error, clients)
	for range clients {
		workers.Go(func() {
			for range transfers {
				some := rand.Perm(accounts)
				if err := transfer(ctx, client, account(some[0]), account(some[1]), 1+rand.IntN(10), &attempts); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		workers.Wait()
		close(done)
	}()
	checks := 0
	for last := false; !last; checks++ {
		select {
		case <-done:
			last = true
		default:
		}
		found, err := total(ctx, client)
		if err != nil {
			return err
		}
		if found != accounts*firstBalance {
			return fmt.Errorf("%d at a snapshot, not %d", found, accounts*firstBalance)
		}
	}
	select {
	case err := <-failures:
		return err
	default:
	}
	fmt.Printf("transfers %d, attempts %d, checks %d: no money was lost or made\n", clients*transfers, attempts.Load(), checks)
	return nil
}

func transfer(
	ctx context.Context, client *percolator.Client, giver, taker string, amount int, attempts *atomic.Int64,
) error {
	both := []percolator.CellName{{Table: table, Row: giver, Column: column}, {Table: table, Row: taker, Column: column}}
	return client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
		attempts.Add(1)
		has, err := strconv.Atoi(string(tx.Values()[0]))
		if err != nil {
			return err
		}
		gets, err := strconv.Atoi(string(tx.Values()[1]))
		if err != nil {
			return err
		}
		moved := min(amount, has)
		if err := put(ctx, tx, giver, has-moved); err != nil {
			return err
		}
		return put(ctx, tx, taker, gets+moved)
	}, percolator.WithCells(both...))
}

func total(ctx context.Context, client *percolator.Client) (sum int, err error) {
	err = client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
		sum = 0
		for cell, err := range tx.Scan(ctx, table, percolator.Range{Prefix: "account-"}) {
			if err != nil {
				return err
			}
			balance, err := strconv.Atoi(string(cell.Value))
			if err != nil {
				return err
			}
			sum += balance
		}
		return nil
	})
	return sum, err
}

func put(ctx context.Context, tx *percolator.Tx, account string, balance int) error {
	return tx.Put(ctx, table, account, column, []byte(strconv.Itoa(balance)))
}

func account(number int) string { return fmt.Sprintf("account-%04d", number) }
