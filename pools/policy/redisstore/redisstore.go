// Package redisstore keeps the assignments of [policy.Manual] in Redis, where the
// routers of a fleet share them. The command makes one DB and a Store for each
// pool; the policies call the stores and are closed before the DB.
//
// A session is one string of comma-joined worker ids under
// tandem:manual:<model>:<role>:<hash of the key>, which Redis drops when it was idle
// for as long as routers remember keys. Nothing else is read or written: no key of a
// client, no text. Fleets that share a server need a database each, as in
// redis://host/1. Redis must be 6.2 or later, for GETEX.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/tandem-pd/tandem/pd"
)

// dialTimeout bounds what a connection takes to come up. The calls that wait for it
// may have left before.
const dialTimeout = time.Second

// swap stores ARGV[2] if KEYS[1] holds ARGV[1] or nothing, has the key live for
// ARGV[3] ms more, and returns what it holds then.
const swap = `
local held = redis.call('GETEX', KEYS[1], 'PX', ARGV[3])
if held and held ~= ARGV[1] then
  return held
end
if held ~= ARGV[2] then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return ARGV[2]`

// DB is a Redis server, or what stands in for one.
type DB struct {
	client *redis.Client
	swap   *redis.Script
}

// Open reads an address: redis://user:password@host:port/database, rediss:// for
// TLS, unix:// for a socket. It does not connect: a server that is down may come up
// later. The error holds nothing of the address, which may hold a password.
func Open(address string) (*DB, error) {
	opt, err := redis.ParseURL(address)
	if err != nil { // whose text may be a piece of a password with a / in it
		return nil, errors.New("redisstore: want redis://user:password@host:port/database, rediss://… or unix:///path?db=number")
	}
	logging.Disable()                // it would write to stderr what the errors say too
	opt.ContextTimeoutEnabled = true // the policy says how long a call may take
	opt.MaxRetries = -1              // and calls again when it sees fit
	opt.DialTimeout, opt.DialerRetries = dialTimeout, 1
	opt.Protocol = 2 // nothing is pushed
	opt.DisableIdentity = true
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &DB{client: redis.NewClient(opt), swap: redis.NewScript(swap)}, nil
}

// Close closes the connections. One that is still being made is given up within a
// second.
func (db *DB) Close() error { return db.client.Close() }

// Store is where one pool keeps its sessions. It implements policy.Store.
type Store struct {
	db     *DB
	prefix string
	ttl    int64 // ms
}

// Store is the store of a model's pool of a role. maxIdle is how long a session is
// kept behind its last use, which is the same for all routers of the fleet.
func (db *DB) Store(model string, role pd.Role, maxIdle time.Duration) *Store {
	return &Store{db: db, prefix: "tandem:manual:" + model + ":" + role.String() + ":", ttl: max(1, maxIdle.Milliseconds())}
}

// Swap implements policy.Store.
func (s *Store) Swap(ctx context.Context, key string, prev, next []pd.WorkerID) ([]pd.WorkerID, error) {
	held, err := s.db.swap.Run(ctx, s.db.client, []string{s.prefix + key}, join(prev), join(next), s.ttl).Text()
	if err != nil {
		return nil, fmt.Errorf("redisstore: %w", err)
	}
	return split(held)
}

// join is a session's workers as they are stored. A comma of an id is escaped.
func join(ids []pd.WorkerID) string {
	escape := strings.NewReplacer("%", "%25", ",", "%2C")
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = escape.Replace(string(id))
	}
	return strings.Join(texts, ",")
}

// split undoes join. What no router has stored is an error.
func split(held string) ([]pd.WorkerID, error) {
	unescape := strings.NewReplacer("%25", "%", "%2C", ",")
	var ids []pd.WorkerID
	for text := range strings.SplitSeq(held, ",") {
		if text == "" {
			return nil, errors.New("redisstore: what is stored is no list of workers")
		}
		ids = append(ids, pd.WorkerID(unescape.Replace(text)))
	}
	return ids, nil
}
