// Package integration tests Tandem from outside: requests of its clients go
// through a whole router to simulated engines (simengine), and the cases that
// need no script also to real ones. Nothing imports it.
package integration
