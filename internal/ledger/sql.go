package ledger

// Every statement here is read by SQLite and Postgres alike: numbered placeholders, ON CONFLICT, no function that only
// one of them has. In an upsert, instances is the row that is there and excluded the one that is being written.

const columns = `token, claim_uid, claim, pool, provider, capacity_type, region, offer_id, gpu, gpu_count, models, price,
	intended_at, refused, instance_id, created_at, destroy_asked_at, gone_at, end_reason,
	billing_step, billing_least, billed, billed_step, account`

const insertInstance = `INSERT INTO instances (` + columns + `)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)
	ON CONFLICT (token) DO UPDATE SET `

// mergeLife keeps what is known of the claim and of the instance's life. Of two times the earlier stays: what happened
// once was at most seen again later.
const mergeLife = `
	claim_uid = CASE WHEN instances.claim_uid = '' THEN excluded.claim_uid ELSE instances.claim_uid END,
	claim = CASE WHEN instances.claim = '' THEN excluded.claim ELSE instances.claim END,
	pool = CASE WHEN instances.pool = '' THEN excluded.pool ELSE instances.pool END,
	instance_id = CASE WHEN instances.instance_id = '' THEN excluded.instance_id ELSE instances.instance_id END,
	end_reason = CASE WHEN instances.end_reason = '' THEN excluded.end_reason ELSE instances.end_reason END,
	created_at = CASE WHEN instances.created_at IS NULL OR excluded.created_at < instances.created_at
		THEN excluded.created_at ELSE instances.created_at END,
	destroy_asked_at = CASE WHEN instances.destroy_asked_at IS NULL OR excluded.destroy_asked_at < instances.destroy_asked_at
		THEN excluded.destroy_asked_at ELSE instances.destroy_asked_at END,
	gone_at = CASE WHEN instances.gone_at IS NULL OR excluded.gone_at < instances.gone_at
		THEN excluded.gone_at ELSE instances.gone_at END,
	billed_step = CASE WHEN instances.billed IS NULL THEN excluded.billed_step ELSE instances.billed_step END,
	billed = COALESCE(instances.billed, excluded.billed)`

// updateInstance fills in what is not known. A refusal of an intent that was made again since is an old one, and must
// not hide what the newer intent may have rented.
const updateInstance = insertInstance + mergeLife + `,
	provider = CASE WHEN instances.provider = '' THEN excluded.provider ELSE instances.provider END,
	account = CASE WHEN instances.account = '' THEN excluded.account ELSE instances.account END,
	capacity_type = CASE WHEN instances.capacity_type = '' THEN excluded.capacity_type ELSE instances.capacity_type END,
	region = CASE WHEN instances.region = '' THEN excluded.region ELSE instances.region END,
	offer_id = CASE WHEN instances.offer_id = '' THEN excluded.offer_id ELSE instances.offer_id END,
	gpu = CASE WHEN instances.gpu = '' THEN excluded.gpu ELSE instances.gpu END,
	gpu_count = CASE WHEN instances.gpu_count = 0 THEN excluded.gpu_count ELSE instances.gpu_count END,
	models = CASE WHEN instances.models = '' THEN excluded.models ELSE instances.models END,
	price = CASE WHEN instances.price = 0 THEN excluded.price ELSE instances.price END,
	billing_step = CASE WHEN instances.billing_step = 0 THEN excluded.billing_step ELSE instances.billing_step END,
	billing_least = CASE WHEN instances.billing_least = 0 THEN excluded.billing_least ELSE instances.billing_least END,
	intended_at = COALESCE(instances.intended_at, excluded.intended_at),
	refused = CASE WHEN instances.refused = 1 OR excluded.refused = 1 AND (excluded.intended_at IS NULL
		OR instances.intended_at IS NULL OR excluded.intended_at >= instances.intended_at) THEN 1 ELSE 0 END`

// intendInstance takes a newer intent's offer whole, unknown fields included: a row must not mix two offers. It changes
// no row where the token is used up.
const intendInstance = insertInstance + mergeLife + `,
	provider = CASE WHEN instances.intended_at > excluded.intended_at THEN instances.provider ELSE excluded.provider END,
	account = CASE WHEN instances.intended_at > excluded.intended_at THEN instances.account ELSE excluded.account END,
	capacity_type = CASE WHEN instances.intended_at > excluded.intended_at THEN instances.capacity_type ELSE excluded.capacity_type END,
	region = CASE WHEN instances.intended_at > excluded.intended_at THEN instances.region ELSE excluded.region END,
	offer_id = CASE WHEN instances.intended_at > excluded.intended_at THEN instances.offer_id ELSE excluded.offer_id END,
	gpu = CASE WHEN instances.intended_at > excluded.intended_at THEN instances.gpu ELSE excluded.gpu END,
	gpu_count = CASE WHEN instances.intended_at > excluded.intended_at THEN instances.gpu_count ELSE excluded.gpu_count END,
	models = CASE WHEN instances.intended_at > excluded.intended_at THEN instances.models ELSE excluded.models END,
	price = CASE WHEN instances.intended_at > excluded.intended_at THEN instances.price ELSE excluded.price END,
	billing_step = CASE WHEN instances.intended_at > excluded.intended_at THEN instances.billing_step ELSE excluded.billing_step END,
	billing_least = CASE WHEN instances.intended_at > excluded.intended_at THEN instances.billing_least ELSE excluded.billing_least END,
	intended_at = CASE WHEN instances.intended_at > excluded.intended_at THEN instances.intended_at ELSE excluded.intended_at END,
	refused = 0
	WHERE instances.gone_at IS NULL
		AND (instances.refused = 0 OR instances.instance_id <> '' OR excluded.intended_at > instances.intended_at)`

const insertRate = `INSERT INTO rates (token, starts_at, rate) VALUES ($1, $2, $3)
	ON CONFLICT (token, starts_at) DO NOTHING`

const insertShares = `INSERT INTO shares (token, starts_at, shares) VALUES ($1, $2, $3)
	ON CONFLICT (token, starts_at) DO NOTHING`

// refuseIntent takes back an intent that nothing came of; it makes no row.
const refuseIntent = `UPDATE instances SET refused = 1 WHERE token = $1 AND instance_id = '' AND created_at IS NULL`

const insertEvent = `INSERT INTO events (token, happened_at, kind, message) VALUES ($1, $2, $3, $4)
	ON CONFLICT (token, happened_at, kind) DO NOTHING`

// deleteNothing needs the right to write and changes nothing: no event is without a token.
const deleteNothing = `DELETE FROM events WHERE token = ''`

const selectEvents = `SELECT token, happened_at, kind, message FROM events WHERE token = $1 ORDER BY happened_at, kind`

// selectHistories reads instances with their rates and shares in one statement, so that all are of one moment. A line
// has the one or the other.
const selectHistories = `SELECT i.token, i.claim_uid, i.claim, i.pool, i.provider, i.capacity_type, i.region, i.offer_id,
	i.gpu, i.gpu_count, i.models, i.price, i.intended_at, i.refused, i.instance_id, i.created_at, i.destroy_asked_at,
	i.gone_at, i.end_reason, i.billing_step, i.billing_least, i.billed, i.billed_step, i.account, r.starts_at, r.rate, r.shares
	FROM instances i LEFT JOIN (
		SELECT token, starts_at, rate, '' AS shares FROM rates
		UNION ALL SELECT token, starts_at, 0 AS rate, shares FROM shares) r ON r.token = i.token `

// COALESCE, because the two databases disagree on whether NULL sorts first.
const inOrder = ` ORDER BY COALESCE(i.created_at, i.intended_at, 0), i.token, r.starts_at, r.shares`

const selectOne = selectHistories + `WHERE i.token = $1` + inOrder

// A refusal is wrong where an instance is known after all: what may cost money counts as live.
const selectLive = selectHistories + `WHERE i.gone_at IS NULL AND (i.refused = 0 OR i.instance_id <> '')` + inOrder

const selectBilled = selectHistories + `WHERE i.created_at < $2
	AND (i.destroy_asked_at IS NULL OR i.destroy_asked_at > $1)
	AND (i.gone_at IS NULL OR i.gone_at > $1)` + inOrder

// selectUnbilled is for whoever reads the providers' accounts.
const selectUnbilled = selectHistories + `WHERE i.gone_at > $1 AND i.billed IS NULL AND i.instance_id <> ''` + inOrder
