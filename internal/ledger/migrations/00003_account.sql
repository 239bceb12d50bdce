-- +goose Up
-- The account that it was bought with, in the provider's own numbering.
ALTER TABLE instances ADD COLUMN account TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE instances DROP COLUMN account;
