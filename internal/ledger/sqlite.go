package ledger

import (
	"database/sql"
	"errors"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite" // the driver called "sqlite"
)

const memory = ":memory:"

// pathOf is the file that a URL means, without its scheme.
func pathOf(rest string) (string, error) {
	if rest == memory {
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

func openSQLite(rest string) (*Ledger, error) {
	path, err := pathOf(rest)
	if err != nil {
		return nil, err
	}
	name := "file:" + memory
	if path != memory {
		name = (&url.URL{Scheme: "file", Path: path}).String()
	}
	write, err := sql.Open("sqlite", name+"?"+writeOptions)
	if err != nil {
		return nil, err
	}
	// SQLite has one writer: waiting in Go is fair, waiting in the database is not. In memory each connection would be
	// a database of its own.
	write.SetMaxOpenConns(1)
	l := &Ledger{write: write, read: write, where: path, migrator: func() (*goose.Provider, func() error, error) {
		p, err := newMigrator(goose.DialectSQLite3, write)
		return p, func() error { return nil }, err
	}}
	if path == memory {
		return l, nil
	}
	if l.read, err = sql.Open("sqlite", name+"?"+readOptions); err != nil {
		return nil, errors.Join(err, write.Close())
	}
	l.read.SetMaxOpenConns(4)
	return l, nil
}
