-- Only what SQLite and Postgres both read the same way. Times are UTC microseconds, money is micro-dollars; an unknown
-- time is NULL, an unknown text is empty, an unknown number is 0.

-- +goose Up
CREATE TABLE instances (
    token            TEXT     NOT NULL PRIMARY KEY,
    claim_uid        TEXT     NOT NULL,
    claim            TEXT     NOT NULL,
    pool             TEXT     NOT NULL,
    provider         TEXT     NOT NULL,
    capacity_type    TEXT     NOT NULL,
    region           TEXT     NOT NULL,
    offer_id         TEXT     NOT NULL,
    gpu              TEXT     NOT NULL,
    gpu_count        INTEGER  NOT NULL,
    models           TEXT     NOT NULL, -- a JSON array of strings, or empty
    price            BIGINT   NOT NULL,
    intended_at      BIGINT,
    refused          SMALLINT NOT NULL, -- 0 or 1
    instance_id      TEXT     NOT NULL,
    created_at       BIGINT,
    destroy_asked_at BIGINT,
    gone_at          BIGINT,
    end_reason       TEXT     NOT NULL
);
CREATE INDEX instances_gone_at ON instances (gone_at);
CREATE INDEX instances_created_at ON instances (created_at);

-- What an instance costs from a time on. starts_at 0 is from when it began to bill.
CREATE TABLE rates (
    token     TEXT   NOT NULL,
    starts_at BIGINT NOT NULL,
    rate      BIGINT NOT NULL,
    PRIMARY KEY (token, starts_at)
);

-- No reference to instances: an event may be written before the row, or while the row cannot be.
CREATE TABLE events (
    token       TEXT   NOT NULL,
    happened_at BIGINT NOT NULL,
    kind        TEXT   NOT NULL,
    message     TEXT   NOT NULL,
    PRIMARY KEY (token, happened_at, kind)
);

-- +goose Down
DROP TABLE events;
DROP TABLE rates;
DROP TABLE instances;
