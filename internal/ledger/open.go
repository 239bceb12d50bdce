package ledger

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Ledger is an open ledger. It is safe for any number of goroutines, and for other processes on the same database.
type Ledger struct {
	write *sql.DB
	// read is apart, so that a report over years does not hold up a purchase.
	read *sql.DB
	// where names the database in errors, without credentials.
	where string
	// patience bounds one call; 0 where the database bounds it itself.
	patience time.Duration
	// migrator is for a connection of its own where that needs other settings; the returned function ends it.
	migrator func() (*goose.Provider, func() error, error)

	opening sync.Mutex
	opened  atomic.Bool
}

// Open opens the ledger at a URL and brings its schema up to date, creating an SQLite file if there is none:
//
//	sqlite:///var/lib/gpuscale/ledger.db   an absolute path, taken literally
//	sqlite://ledger.db                     a path in the working directory
//	sqlite::memory:                        nothing is kept; for tests
//	postgres://user:password@host:5432/db  a database on a server, with the options of libpq (?sslmode=verify-full)
//
// It fails if the database cannot be written, and names it. No error repeats the URL, which may hold a password.
func Open(ctx context.Context, address string) (*Ledger, error) {
	l, err := connect(address)
	if err != nil {
		return nil, err
	}
	if err := l.ensure(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("ledger: open %s: %w", l.where, err), l.Close())
	}
	return l, nil
}

// Attach is Open that does not insist on a server that is away: then every call fails until it is back, which lets a
// controller go on with what is rented already. A file, and a server that answers and refuses, must be usable at once.
func Attach(ctx context.Context, address string) (l *Ledger, away, err error) {
	if l, err = connect(address); err != nil {
		return nil, nil, err
	}
	switch err = l.ensure(ctx); {
	case err == nil:
		return l, nil, nil
	case unreachable(err):
		return l, fmt.Errorf("ledger: open %s: %w", l.where, err), nil
	}
	return nil, nil, errors.Join(fmt.Errorf("ledger: open %s: %w", l.where, err), l.Close())
}

// Close waits for what is running and closes the database. The ledger is not usable afterwards.
func (l *Ledger) Close() error {
	var err error
	if l.read != l.write {
		err = l.read.Close()
	}
	// Last, so that the writer of an SQLite file leaves no log beside it.
	if err = errors.Join(err, l.write.Close()); err != nil {
		return fmt.Errorf("ledger: close %s: %w", l.where, err)
	}
	return nil
}

// connect takes the URL apart; it calls nobody.
func connect(address string) (*Ledger, error) {
	scheme, rest, ok := strings.Cut(address, ":")
	switch {
	case !ok:
		return nil, errors.New("ledger: not a URL; sqlite:///path/file.db and postgres://user@host/database are")
	case scheme == "sqlite":
		return openSQLite(rest)
	case scheme == "postgres" || scheme == "postgresql":
		return openPostgres(address)
	}
	return nil, fmt.Errorf("ledger: %.20q is no database that the ledger knows; use sqlite:///path/file.db or "+
		"postgres://user@host/database", scheme)
}

// errOpening is for whoever comes while the database is being tried.
var errOpening = errors.New("the database is being opened")

// ensure migrates the database once and proves that it can be written: the first to notice would otherwise be an intent.
// Only one caller tries at a time, and the others do not queue up behind a server that is away.
func (l *Ledger) ensure(ctx context.Context) error {
	if l.opened.Load() {
		return nil
	}
	if !l.opening.TryLock() {
		return errOpening
	}
	defer l.opening.Unlock()
	if l.opened.Load() {
		return nil
	}
	if err := l.migrate(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	if _, err := l.write.ExecContext(ctx, deleteNothing); err != nil {
		return fmt.Errorf("not writable: %w", err)
	}
	l.opened.Store(true)
	return nil
}

func (l *Ledger) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if l.patience == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, l.patience)
}

func (l *Ledger) migrate(ctx context.Context) (err error) {
	provider, end, err := l.migrator()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for {
		before, verr := provider.GetDBVersion(ctx)
		if unreachable(verr) {
			return verr // Nobody is to wait for a server that is away three times over.
		}
		if verr != nil {
			before = -1
		}
		if _, err = provider.Up(ctx); err == nil || unreachable(err) {
			return err
		}
		// Another process may be migrating the same file: then it has got further since, and what is left is tried again.
		after, verr := provider.GetDBVersion(ctx)
		if verr != nil || after <= before {
			return err
		}
	}
}

func newMigrator(dialect goose.Dialect, db *sql.DB, options ...goose.ProviderOption) (*goose.Provider, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(dialect, db, files, append(options,
		goose.WithTableName("ledger_migrations"), goose.WithDisableGlobalRegistry(true))...)
}
