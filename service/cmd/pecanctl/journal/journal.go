// Package journal looks at the work directory of a dispatcher that does not run: it checks that all of it can be read and fits together, and
// shows its records. It changes nothing there.
package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/pecan-ml/pecan/service/store"
)

// Options of both views.
type Options struct {
	JSON bool
	// From and To are the first and the last record that are shown; 0 is no bound. At most Limit are; 0 is all.
	From, To, Limit uint64
}

// Unchecked is an error of a store that could not be looked at; it is no sign of damage.
type Unchecked struct{ error }

// Unwrap gives the cause.
func (u Unchecked) Unwrap() error { return u.error }

// ExitCode tells a store that could not be looked at from one that is damaged.
func (Unchecked) ExitCode() int { return 2 }

// Run does what the words behind "pecanctl store" say.
func Run(ctx context.Context, o Options, args []string, out io.Writer) error {
	if len(args) != 2 || args[0] != "check" && args[0] != "inspect" {
		return Unchecked{fmt.Errorf("want store check DIR or store inspect DIR, got %q (see --help)", strings.Join(append([]string{"store"}, args...), " "))}
	}
	if o.To > 0 && o.To < o.From {
		return Unchecked{fmt.Errorf("--from %d is behind --to %d", o.From, o.To)}
	}
	r, err := store.OpenReader(store.Options{Dir: args[1]})
	if err != nil {
		damaged := errors.Is(err, store.ErrDamaged)
		switch {
		case errors.Is(err, store.ErrInUse):
			err = fmt.Errorf("%s is in use by a dispatcher that runs: ask that one (pecanctl status), stop it, or look at a copy of the directory", args[1])
			fallthrough
		case !damaged:
			err = Unchecked{err}
		}
		if o.JSON && args[0] == "check" {
			// Who reads JSON gets it whatever there is to say.
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
