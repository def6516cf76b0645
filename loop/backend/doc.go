// Package backend is how the loop reaches a model: as a command that is run once
// per request, or over HTTP; and what may be wrapped around one: a recorder, a
// replayer, a budget, pseudonyms. It does not decide what is asked or believed;
// that is package loop. Nothing here reads the environment.
package backend
