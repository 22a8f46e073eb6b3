// A secondary index that is unique: users, and who has which address of mail.
//
// A user and the entry of the index are written by one transaction, so that they agree at every snapshot. An address is read
// for update: of two users who take the same one at a time, one finds that it is taken.
//
//	percolator up &
//	cd go && go run ./examples/uniqueindex
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"sync"
	"sync/atomic"

	"percolator.dev/percolator"
)

const users, index = "users", "users-by-mail"

var errTaken = errors.New("another user has the address")

// setMail gives a user this address.
func setMail(ctx context.Context, client *percolator.Client, user, mail string) error {
	return client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
		owner, err := tx.GetForUpdate(ctx, index, mail, "user")
		if err != nil {
			return err
		}
		if owner != nil && string(owner) != user {
			return errTaken
		}
		before, err := tx.Get(ctx, users, user, "mail")
		if err != nil {
			return err
		}
		if before != nil {
			if err := tx.Delete(ctx, index, string(before), "user"); err != nil {
				return err
			}
		}
		if err := tx.Put(ctx, users, user, "mail", []byte(mail)); err != nil {
			return err
		}
		return tx.Put(ctx, index, mail, "user", []byte(user))
	})
}

// userOf is who has an address; nobody is the empty string.
func userOf(ctx context.Context, client *percolator.Client, mail string) (user string, err error) {
	err = client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
		found, err := tx.Get(ctx, index, mail, "user")
		user = string(found)
		return err
	})
	return user, err
}

// check counts the users, if the index says the same as they do.
func check(ctx context.Context, client *percolator.Client) (int, error) {
	byUser, byMail := map[string]string{}, map[string]string{}
	err := client.Transact(ctx, func(ctx context.Context, tx *percolator.Tx) error {
		clear(byUser)
		clear(byMail)
		for cell, err := range tx.Scan(ctx, users, percolator.Range{}) {
			if err != nil {
				return err
			}
			byUser[cell.Row] = string(cell.Value)
		}
		for cell, err := range tx.Scan(ctx, index, percolator.Range{}) {
			if err != nil {
				return err
			}
			byMail[string(cell.Value)] = cell.Row
		}
		return nil
	})
	if err == nil && !maps.Equal(byUser, byMail) {
		err = fmt.Errorf("users have %v, and the index %v", byUser, byMail)
	}
	return len(byUser), err
}

func main() {
	log.SetFlags(0)
	client, err := percolator.Connect("")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := run(context.Background(), client); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, client *percolator.Client) error {
	for _, table := range []string{users, index} {
		if err := client.CreateTable(ctx, table); err != nil && !errors.Is(err, percolator.ErrAlreadyExists) {
			return err
		}
	}
	for _, mail := range []string{"ann@a.example", "ann@b.example"} {
		if err := setMail(ctx, client, "ann", mail); err != nil {
			return err
		}
	}
	for _, mail := range []string{"ann@a.example", "ann@b.example"} {
		user, err := userOf(ctx, client, mail)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %q\n", mail, user)
	}

	// Many want the same address at the same time.
	var refused atomic.Int64
	var all sync.WaitGroup
	failures := make(chan error, 8)
	for number := range 8 {
		all.Go(func() {
			err := setMail(ctx, client, fmt.Sprintf("user-%d", number), "all@a.example")
			if errors.Is(err, errTaken) {
				refused.Add(1)
			} else if err != nil {
				failures <- err
			}
		})
	}
	all.Wait()
	close(failures)
	for err := range failures {
		return err
	}
	fmt.Println("refused:", refused.Load())
	count, err := check(ctx, client)
	fmt.Println("users:", count)
	return err
}
