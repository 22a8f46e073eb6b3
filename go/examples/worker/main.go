// A worker of a transaction that several clients share: it counts the words of one text, and leaves the commit to the client that began the
// transaction (python/examples/shared.py, which starts it).
//
//	go run ./examples/worker -join TOKEN -text NAME
package main

import (
	"context"
	"flag"
	"log"
	"strconv"
	"strings"

	"percolator.dev/percolator"
)

func main() {
	log.SetFlags(0)
	token := flag.String("join", "", "token of the transaction")
	text := flag.String("text", "", "row of the text")
	here := flag.Bool("here", false, "at the proxy that PERCOLATOR_PROXY names, and not at that which has the transaction")
	flag.Parse()
	client, err := percolator.Connect("")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := count(context.Background(), client, *token, *text, *here); err != nil {
		log.Fatal(err)
	}
}

func count(ctx context.Context, client *percolator.Client, token, text string, here bool) error {
	join := client.Join
	if here {
		join = client.JoinHere
	}
	tx, err := join(ctx, token)
	if err != nil {
		return err
	}
	found, err := tx.GetForUpdate(ctx, "texts", text, "text")
	if err != nil {
		return err
	}
	words := strconv.Itoa(len(strings.Fields(string(found))))
	if err := tx.Put(ctx, "counts", text, "words", []byte(words)); err != nil {
		return err
	}
	return tx.Finish(ctx)
}
