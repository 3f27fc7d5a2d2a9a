package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/pecan-ml/pecan/service/store"
)

// Options are the flags of both commands.
type Options struct {
	JSON bool
	// From and To are the numbers of the first and the last record to show; 0 means no bound. Limit is the most records; 0 means all.
	From, To, Limit uint64
}

// Unchecked is the error for a store that could not be read. It does not mean that the store is damaged.
type Unchecked struct{ error }

// Unwrap returns the cause.
func (u Unchecked) Unwrap() error { return u.error }

// ExitCode returns 2, so that scripts can distinguish an unreadable store from a damaged one.
func (Unchecked) ExitCode() int { return 2 }

// Run runs the command in the arguments after "pecanctl store".
func Run(ctx context.Context, o Options, args []string, out io.Writer) error {
	if len(args) != 2 || args[0] != "check" && args[0] != "inspect" {
		return Unchecked{fmt.Errorf("want store check DIR or store inspect DIR, got %q (see --help)", strings.Join(append([]string{"store"}, args...), " "))}
	}
	if o.To > 0 && o.To < o.From {
		return Unchecked{fmt.Errorf("--from %d is greater than --to %d", o.From, o.To)}
	}
	r, err := store.OpenReader(store.Options{Dir: args[1]})
	if err != nil {
		damaged := errors.Is(err, store.ErrDamaged)
		switch {
		case errors.Is(err, store.ErrInUse):
			err = fmt.Errorf("%s is in use by a running dispatcher: query it with pecanctl status, stop it, or read a copy of the directory", args[1])
			fallthrough
		case !damaged:
			err = Unchecked{err}
		}
		if o.JSON && args[0] == "check" {
			// With --json the output is always JSON, even if the store could not be opened.
			return errors.Join(err, (&report{Dir: args[1], Unread: true, Problems: []string{err.Error()}}).json(out))
		}
		return err
	}
	defer r.Close()
	if args[0] == "inspect" {
		return inspect(ctx, r, o, out)
	}
	return check(ctx, r, o, out)
}
