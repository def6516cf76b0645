package cancel_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/apbus/apbus/cancel"
)

// A call runs under a token of its own. A nested call that is stopped leaves
// its caller running; what the caller is told reaches the nested call.
func ExampleJoin() {
	app := cancel.NewToken()

	ctx, call := cancel.Join(context.Background(), app)
	defer call.Release()
	nctx, nested := cancel.Join(ctx, call)
	defer nested.Release()

	nested.Cancel(cancel.Because(cancel.Timeout, "executor", "the module ran for 5s"))
	fmt.Println(context.Cause(nctx))
	fmt.Println("caller:", call.IsCancelled())

	app.Cancel(cancel.Because(cancel.Shutdown, "node-7", ""))
	fmt.Println("caller:", call.Check())

	// Output:
	// timeout by executor: the module ran for 5s
	// caller: false
	// caller: cancelled: shutdown by node-7
}

// A cancel that overtakes its call leaves a tombstone, which stops the call on
// arrival.
func ExampleTable_Cancel() {
	calls := cancel.NewTable(cancel.TableOptions{})
	_, buried := calls.Cancel(cancel.Selector{Call: "c-1"}, cancel.CancelRequest{
		Issuer: "ann",
		Cause:  cancel.Because(cancel.Caller, "ann", "no longer needed"),
		Bury:   true,
	})
	fmt.Println("buried:", buried)

	_, err := calls.Begin(cancel.Call{Key: cancel.Key{Call: "c-1", Attempt: 1}, Issuer: "ann"})
	fmt.Println(errors.Is(err, cancel.ErrCancelled), err)

	// Output:
	// buried: true
	// true cancelled before it began: caller by ann: no longer needed
}
