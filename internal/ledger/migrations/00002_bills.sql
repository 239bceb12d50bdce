-- +goose Up
-- The step and the least of the provider's billing, in microseconds; 0 is not known.
ALTER TABLE instances ADD COLUMN billing_step BIGINT NOT NULL DEFAULT 0;
ALTER TABLE instances ADD COLUMN billing_least BIGINT NOT NULL DEFAULT 0;
-- What the provider's own account says that it cost, in micro-dollars, and the step of that figure.
ALTER TABLE instances ADD COLUMN billed BIGINT;
ALTER TABLE instances ADD COLUMN billed_step BIGINT;

-- Which models share an instance from a time on. starts_at 0 is from the beginning.
CREATE TABLE shares (
    token     TEXT   NOT NULL,
    starts_at BIGINT NOT NULL,
    shares    TEXT   NOT NULL, -- a JSON array of {"model", "weight"}
    PRIMARY KEY (token, starts_at)
);

-- +goose Down
DROP TABLE shares;
ALTER TABLE instances DROP COLUMN billed_step;
ALTER TABLE instances DROP COLUMN billed;
ALTER TABLE instances DROP COLUMN billing_least;
ALTER TABLE instances DROP COLUMN billing_step;
