package percolator

import (
	"testing"
	"time"
)

// GiveUpAfter has calls without a deadline given up so soon, until the test has ended.
func GiveUpAfter(t *testing.T, after time.Duration) {
	before := retryFor
	retryFor = after
	t.Cleanup(func() { retryFor = before })
}
