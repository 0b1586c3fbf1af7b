"""Threads, and what they wait for."""

import concurrent.futures
import queue
import threading

Thread = threading.Thread
Timer = threading.Timer
Lock = threading.Lock
Condition = threading.Condition
Event = threading.Event
Semaphore = threading.Semaphore
SimpleQueue = queue.SimpleQueue
Empty = queue.Empty
Future = concurrent.futures.Future
ThreadPoolExecutor = concurrent.futures.ThreadPoolExecutor
TIMEOUT_MAX = threading.TIMEOUT_MAX  # Longest wait, seconds.
wait = concurrent.futures.wait
current_thread = threading.current_thread
main_thread = threading.main_thread
