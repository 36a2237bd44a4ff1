"""Least squares, with the standard library alone."""

import math
import operator


def least_squares(rows, values):
    """The factors of the columns, none of them below zero: a column whose factor would be is left out."""
    columns = list(range(len(rows[0])))
    by_column = list(zip(*rows))
    matrix = [[sum(map(operator.mul, one, other)) for other in by_column] for one in by_column]
    right = [sum(map(operator.mul, one, values)) for one in by_column]
    while True:
        factors = solved([[matrix[i][j] for j in columns] for i in columns], [right[i] for i in columns])
        lowest = min(range(len(columns)), key=lambda i: factors[i])
        if factors[lowest] >= 0:
            found = dict(zip(columns, factors))
            return [found.get(i, 0.0) for i in range(len(rows[0]))]
        del columns[lowest]


def solved(matrix, right):
    """By Gauss's elimination; columns that depend on others get 0."""
    n = len(right)
    scale = [math.sqrt(matrix[i][i]) or 1.0 for i in range(n)]
    rows = [[matrix[i][j] / scale[i] / scale[j] for j in range(n)] + [right[i] / scale[i]] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda row: abs(rows[row][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if abs(rows[i][i]) < 1e-12:
            rows[i] = [float(j == i) for j in range(n)] + [0.0]
        for row in range(n):
            if row != i:
                factor = rows[row][i] / rows[i][i]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[i])]
    return [rows[i][n] / rows[i][i] / scale[i] for i in range(n)]
