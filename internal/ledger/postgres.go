package ledger

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// Limits on a server that is shared with others and may hang. The client's own limit, patience, is for a network that
// swallows packets; the server's are shorter, so that it is the server that says why.
const (
	connectTimeout   = 5 * time.Second
	statementTimeout = 10 * time.Second
	lockTimeout      = 5 * time.Second
	idleTimeout      = 20 * time.Second
	patience         = 15 * time.Second
	reportTimeout    = time.Minute
	migrateTimeout   = 10 * time.Minute

	maxWriters   = 8
	maxReaders   = 4
	connLifetime = 30 * time.Minute
	connIdle     = 5 * time.Minute
)

// openPostgres prepares connections to a server. Its errors say nothing of what is in the URL.
func openPostgres(address string) (*Ledger, error) {
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return nil, errors.New("ledger: the Postgres URL cannot be read; postgres://user:password@host:5432/database?sslmode=verify-full is one")
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	if err := durable(config.RuntimeParams); err != nil {
		return nil, err
	}
	settle(config.RuntimeParams, "application_name", "gpuscale")
	settle(config.RuntimeParams, "lock_timeout", millis(lockTimeout))
	settle(config.RuntimeParams, "idle_in_transaction_session_timeout", millis(idleTimeout))
	l := &Ledger{
		write:    pool(config, maxWriters, "statement_timeout", millis(statementTimeout)),
		read:     pool(config, maxReaders, "statement_timeout", millis(reportTimeout), "default_transaction_read_only", "on"),
		where:    fmt.Sprintf("%s/%s", net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))), config.Database),
		patience: patience,
	}
	l.migrator = func() (*goose.Provider, func() error, error) { return postgresMigrator(config) }
	return l, nil
}

// durable insists that a commit that was answered is on disk: an intent that a server's crash takes back would let an
// instance live without a record.
func durable(params map[string]string) error {
	const name = "synchronous_commit"
	settle(params, name, "on")
	if v := strings.ToLower(params[name]); v == "off" || v == "false" || v == "no" || v == "0" {
		return errors.New("ledger: the Postgres URL has synchronous_commit=off, with which a server's crash can forget what was bought")
	}
	return nil
}

// settle sets a parameter that the URL leaves open.
func settle(params map[string]string, name, value string) {
	if _, ok := params[name]; !ok {
		params[name] = value
	}
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// pool is a bounded set of connections with some parameters of their own.
func pool(config *pgx.ConnConfig, most int, params ...string) *sql.DB {
	own := config.Copy()
	own.RuntimeParams = maps.Clone(config.RuntimeParams)
	for i := 0; i < len(params); i += 2 {
		own.RuntimeParams[params[i]] = params[i+1]
	}
	db := stdlib.OpenDB(*own)
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(most)
	db.SetConnMaxLifetime(connLifetime)
	db.SetConnMaxIdleTime(connIdle)
	return db
}

// postgresMigrator has a connection without the short limits, and a lock that all processes share.
func postgresMigrator(config *pgx.ConnConfig) (*goose.Provider, func() error, error) {
	db := pool(config, 2, "statement_timeout", millis(migrateTimeout), "lock_timeout", millis(migrateTimeout))
	// Every second: the default of five is long for those who start together.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, uint64(migrateTimeout/time.Second)))
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	p, err := newMigrator(goose.DialectPostgres, db, goose.WithSessionLocker(locker))
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return p, db.Close, nil
}

// unreachable reports that no server answered. One that answers and refuses (a wrong password, no such database) is
// reached; one that is starting or stopping is not.
func unreachable(err error) bool {
	var said *pgconn.PgError
	if errors.As(err, &said) {
		const operatorIntervention = "57"
		return strings.HasPrefix(said.Code, operatorIntervention)
	}
	var connect *pgconn.ConnectError
	return errors.As(err, &connect)
}
