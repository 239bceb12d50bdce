package ledger

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite" // the driver called "sqlite"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Ledger is an open ledger. It is safe for any number of goroutines, and for other processes on the same file.
type Ledger struct {
	// write has one connection on SQLite, which has one writer: waiting in Go is fair, waiting in the database is not.
	write *sql.DB
	// read is apart, so that a report over years does not hold up a purchase.
	read *sql.DB
	// where names the database in errors, without credentials.
	where string
}

// Open opens the ledger at a URL and brings its schema up to date, creating the file if there is none:
//
//	sqlite:///var/lib/gpuscale/ledger.db   an absolute path, taken literally
//	sqlite://ledger.db                     a path in the working directory
//	sqlite::memory:                        nothing is kept; for tests
//
// It fails if the file cannot be written, and names it. Postgres is not served yet and is refused. No error repeats the
// URL, which may hold a password.
func Open(ctx context.Context, address string) (*Ledger, error) {
	path, err := pathOf(address)
	if err != nil {
		return nil, err
	}
	l, err := openSQLite(path)
	if err != nil {
		return nil, fmt.Errorf("ledger: open %s: %w", path, err)
	}
	if err := l.ready(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("ledger: open %s: %w", path, err), l.Close())
	}
	return l, nil
}

// Close waits for what is running and closes the database. The ledger is not usable afterwards.
func (l *Ledger) Close() error {
	var err error
	if l.read != l.write {
		err = l.read.Close()
	}
	// Last, so that the writer leaves one file without a log beside it.
	if err = errors.Join(err, l.write.Close()); err != nil {
		return fmt.Errorf("ledger: close %s: %w", l.where, err)
	}
	return nil
}

const memory = ":memory:"

// pathOf is the file that a URL means.
func pathOf(address string) (string, error) {
	scheme, rest, ok := strings.Cut(address, ":")
	switch {
	case !ok:
		return "", errors.New("ledger: not a URL; sqlite:///path/file.db is one")
	case scheme == "postgres" || scheme == "postgresql":
		return "", errors.New("ledger: Postgres is not in this release; use sqlite:///path/file.db")
	case scheme != "sqlite":
		return "", fmt.Errorf("ledger: %.20q is no database that the ledger knows; use sqlite:///path/file.db", scheme)
	case rest == memory:
		return memory, nil
	}
	path, ok := strings.CutPrefix(rest, "//")
	switch {
	case !ok || path == "" || strings.HasSuffix(path, "/"):
		return "", errors.New("ledger: no file in the URL; sqlite:///path/file.db has one")
	case strings.ContainsAny(path, "?\x00"):
		return "", errors.New("ledger: the URL of an SQLite ledger takes no options")
	}
	return filepath.Abs(path)
}

// Options of every connection. FULL, because an intent must survive a power cut once Intend has returned: NORMAL loses
// the last commits in WAL mode. Immediate, because a transaction that begins by reading and is then refused the write
// lock fails at once, whatever the time-out.
const (
	writeOptions = "_busy_timeout=10000&_journal_mode=WAL&_synchronous=FULL&_foreign_keys=on&_txlock=immediate&_error_rc=1"
	readOptions  = "_busy_timeout=10000&_query_only=1&_error_rc=1"
)

func openSQLite(path string) (*Ledger, error) {
	if path == memory {
		db, err := sql.Open("sqlite", "file::memory:?"+writeOptions)
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(1) // each connection would be a database of its own
		return &Ledger{write: db, read: db, where: memory}, nil
	}
	file := (&url.URL{Scheme: "file", Path: path}).String()
	write, err := sql.Open("sqlite", file+"?"+writeOptions)
	if err != nil {
		return nil, err
	}
	write.SetMaxOpenConns(1)
	read, err := sql.Open("sqlite", file+"?"+readOptions)
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	read.SetMaxOpenConns(4)
	return &Ledger{write: write, read: read, where: path}, nil
}

// ready migrates the database and proves that it can be written: SQLite opens a file that it may only read without a
// word, a schema that is up to date is not written either, and the first to notice would be an intent.
func (l *Ledger) ready(ctx context.Context) error {
	if err := l.migrate(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if _, err := l.write.ExecContext(ctx, deleteNothing); err != nil {
		return fmt.Errorf("not writable: %w", err)
	}
	return nil
}

func (l *Ledger) migrate(ctx context.Context) error {
	provider, err := migrator(l.write)
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	if err == nil {
		return nil
	}
	// Another process may have migrated a new file at the same time.
	if pending, perr := provider.HasPending(ctx); perr == nil && !pending {
		return nil
	}
	return err
}

func migrator(db *sql.DB) (*goose.Provider, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectSQLite3, db, files,
		goose.WithTableName("ledger_migrations"), goose.WithDisableGlobalRegistry(true))
}
