"""The direct path of uncontended locks: how it works, and who may change a lease, is in path.py.

It opens after 64 acquires that could have used it, and only if INFO on both connections names the same process of a
server: a balancer may lead to another one. Each failure doubles that number. It is replaced with the engine's
connection. After another thread has come in between, the next 1,000 acquires take the ordinary way. A reply that is not
one line, or that was not requested, costs the connection, so that no reply is taken for that of the next request.

Import from the modules.
"""
